/* Fork: parent and child both keep what the parent held.
 *
 * Note [A slot for the child]
 *
 *   prepare   the parent opens the control file again, which gives the child a description of its
 *             own, takes a slot through it, enters the slot as a holder of every block that it
 *             holds itself, and sends the manager one end of a new connection; a parent that has
 *             none itself (a daemon, or one that has given up waiting) makes one for the child
 *   fork(2)
 *   child     maps the control file again, through its description, at the same address: now
 *             nothing in it keeps the parent's description, and with it the parent's lock, alive.
 *             It is a process of its own from here on. What the parent owned (segments to allocate
 *             in) is somebody else's segment to the child
 *   parent    closes its copies
 *
 *   Nobody is waited for, so a manager that is stopped delays no fork; one that has been killed is
 *   replaced here, since a fork is often all that a parent does. These are pthread_atfork
 *   handlers, so nothing runs between them and the system call: no other hook, no interpreter, and
 *   a fork by anybody's C code is covered too. (vfork and posix_spawn run no handlers and need
 *   none: the child has nothing before it execs.)
 *
 *   Killed here: the parent, before fork(2): the description goes with it, the slot is not locked,
 *   and the manager takes it out of every block again. The fork fails, or the child dies at once:
 *   the same. There is no moment at which the child holds something and nobody knows.
 *
 *   When no slot can be had (no descriptor, 1024 processes), every block that the parent holds is
 *   given one message that nobody will ever claim: it leaks rather than being reused under the
 *   child's hands. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/process_lock.h"
#include "segment/holder.h"
#include "session/connection.h"
#include "session/control_file.h"
#include "session/fork.h"
#include "session/slot.h"

static struct mpshm__fork_hook hook;

void mpshm__set_fork_hook(struct mpshm__fork_hook h)
{
    hook = h;
}

static struct {
    int fd, sock, slot;
} child[MPSHM__SESSIONS];

static void for_held(struct mpshm__session *session,
                     void (*act)(const struct mpshm__segment *, uint32_t, int), int slot)
{
    for (uint32_t a = 0; a < session->segment_top; a++) {
        struct mpshm__segment *segment = session->segments[a];
        if (segment == NULL || segment->retained_blocks == 0)
            continue;
        uint64_t left = segment->retained_blocks;
        for (uint32_t i = 0; left > 0 && i < segment->capacity; i++)
            if (segment->local_refs[i] != 0) {
                act(segment, i, slot);
                left--;
            }
    }
}

static void add_holder(const struct mpshm__segment *segment, uint32_t i, int slot)
{
    mpshm__add_holder(segment, i, slot);
    atomic_fetch_add(&segment->blocks[i].state, 1);
}

static void leak(const struct mpshm__segment *segment, uint32_t i, int slot)
{
    (void)slot;
    atomic_fetch_add(&segment->blocks[i].in_flight_overflow, 1);
    atomic_fetch_add(&segment->blocks[i].state, 1);
}

static void prepare(void)
{
    mpshm__lock(); /* no other thread is in the middle of anything */
    if (hook.before != NULL)
        hook.before();
    for (int t = 0; t < MPSHM__SESSIONS; t++) {
        struct mpshm__session *session = mpshm__sessions[t];
        child[t].fd = child[t].sock = child[t].slot = -1;
        if (session == NULL)
            continue;
        child[t].fd = mpshm__session_reopen(session, session->stuck_until == 0);
        mpshm__manager_replace(session, child[t].fd);
        if (mpshm__session_retained(session) !=
            0) { /* otherwise the child may take one when it needs it */
            if (child[t].fd >= 0)
                child[t].slot = mpshm__take_slot(session->control, child[t].fd);
            if (child[t].slot >= 0)
                for_held(session, add_holder, child[t].slot);
            else
                for_held(session, leak, -1);
        }
        if (child[t].fd >= 0)
            child[t].sock = mpshm__manager_connect_child(session, child[t].slot);
    }
}

static void close_copies(int t)
{
    if (child[t].sock >= 0)
        close(child[t].sock);
    if (child[t].fd >= 0)
        close(child[t].fd);
}

static void in_parent(void)
{
    if (hook.after != NULL)
        hook.after(0);
    for (int t = 0; t < MPSHM__SESSIONS; t++)
        close_copies(t);
    mpshm__unlock();
}

/* Among the segments of the parent, the child is a guest. */
static void disown(struct mpshm__session *session)
{
    session->own = NULL;
    for (uint32_t a = 0; a < session->segment_top; a++) {
        struct mpshm__segment *segment = session->segments[a];
        if (segment == NULL || !segment->own)
            continue;
        segment->own = 0;
        /* The parent's descriptor is not the child's to register again. */
        mpshm__fd_close(&segment->fd);
    }
}

/* What a child without a slot holds was leaked (see above): letting go of it means nothing. */
static void never_let_go(struct mpshm__session *session)
{
    for (uint32_t a = 0; a < session->segment_top; a++)
        for (uint32_t i = 0;
             session->segments[a] != NULL && session->segments[a]->retained_blocks > 0 &&
             i < session->segments[a]->capacity;
             i++)
            if (session->segments[a]->local_refs[i] != 0)
                session->segments[a]->local_refs[i] += 0x40000000; /* never comes down to 0 */
}

/* Without a description of its own the child keeps the parent's alive, and the parent's memory is
 * kept until the child has ended: a leak, and no slot. */
static void become_a_process(struct mpshm__session *session, int t)
{
    disown(session);
    mpshm__disconnect(session); /* the parent's: it would hide the parent's death */
    session->slot = -1;
    if (child[t].fd >= 0 && mpshm__session_remap(session, child[t].fd) == 0) {
        session->slot = child[t].slot;
        mpshm__fd_set(&session->sock, child[t].sock);
        session->introduced = session->slot >= 0 && child[t].sock >= 0;
    } else {
        if (child[t].slot >= 0)
            for_held(session, leak, -1);
        close_copies(t);
        /* The parent's: a lock taken through it would be the parent's, too. What it refers to stays
         * known, so that it can be opened again. */
        if (mpshm__fd_get(&session->control_fd) >= 0)
            close(session->control_fd.number);
        session->control_fd.number = -1;
    }
    if (session->slot >= 0)
        mpshm__sign_slot(&session->control->slots[session->slot], getpid());
    else
        never_let_go(session);
}

static void in_child(void)
{
    mpshm__fd_drop_reserve(); /* of the parent's description, too */
    for (int t = 0; t < MPSHM__SESSIONS; t++)
        if (mpshm__sessions[t] != NULL)
            become_a_process(mpshm__sessions[t], t);
    if (mpshm__sessions[0] != NULL)
        mpshm__fd_reserve(mpshm__fd_get(&mpshm__sessions[0]->control_fd));
    if (hook.after != NULL)
        hook.after(1);
    mpshm__reset_lock_in_child();
}

/* At load, so that there is no first fork that is missed. */
__attribute__((constructor)) static void arm(void)
{
    pthread_atfork(prepare, in_parent, in_child);
}

void mpshm__fork_handlers(void)
{
    /* Referred to by the code that makes sessions, so that the linker takes this file from the
     * archive. */
}
