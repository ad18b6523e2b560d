/* Fork: parent and child both keep the references that the parent had.
 *
 * A process without a session, which has shared nothing, forks without any of this.
 *
 * Note [A child without blocks]
 *
 *   A parent that has references to no block leaves its child nothing to take over: the child
 *   unmaps the session, and attaches it when it first shares something. Until then it keeps a
 *   description of the control file of its own and a connection to the manager, by which the
 *   session and the messages in it outlive the parent. If the child dies before it attaches, the
 *   kernel closes both. If it forks before, it attaches first: two processes must not share a
 *   description. If the program has closed the descriptors, the path leads to the session.
 *
 * Note [A slot for the child]
 *
 *   prepare   the parent opens the control file again, which gives the child a description of its
 *             own, takes a slot through it, adds the slot as a holder of every block that the
 *             parent has references to, and sends the manager one end of a new connection. A
 *             parent without a connection (a daemon, or one that has given up waiting) makes one
 *             for the child
 *   fork(2)
 *   child     maps the control file again, through its own description, at the same address. Now
 *             nothing in it keeps the parent's description, and with it the parent's lock, alive.
 *             From here on it is a process of its own. The parent's own segments are foreign ones
 *             to the child
 *   parent    closes its copies
 *
 *   No step waits for the manager, so a stopped manager delays no fork. A manager that was killed
 *   is replaced here, since some parents make no other call than fork. These are pthread_atfork
 *   handlers, so no other hook and no interpreter runs between them and the system call, and forks
 *   by other C code are also covered. (vfork and posix_spawn run no handlers and need none: the
 *   child has nothing before it execs.)
 *
 *   If the parent is killed before fork(2), the description goes with it, the slot is not locked,
 *   and the manager removes it from every block. The same happens when the fork fails or the child
 *   dies at once. At no moment does the child have a reference that no other process knows of.
 *
 *   If no slot can be had (no descriptor, 1024 processes), every block that the parent has gets
 *   one message that will never be received. It leaks, rather than being reused while the child
 *   has it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/process_lock.h"
#include "segment/holder_bits.h"
#include "session/connection.h"
#include "session/control_lock.h"
#include "session/fork.h"
#include "session/process_slot.h"

static struct mpshm__fork_hook hook;

void mpshm__set_fork_hook(struct mpshm__fork_hook h)
{
    hook = h;
}

static struct {
    int fd, sock, slot, has_blocks;
} child[MPSHM__SESSIONS];

static void for_retained(struct mpshm__session *session,
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
    mpshm__lock(); /* no other thread is inside libshm */
    if (hook.before != NULL)
        hook.before();
    mpshm__session_attach_detached(); /* see Note [A child without blocks] */
    for (int t = 0; t < MPSHM__SESSIONS; t++) {
        struct mpshm__session *session = mpshm__sessions[t];
        child[t].fd = child[t].sock = child[t].slot = -1;
        if (session == NULL)
            continue;
        child[t].fd = mpshm__session_reopen(session, session->stuck_until == 0);
        mpshm__manager_replace(session, child[t].fd);
        child[t].has_blocks = mpshm__session_retained(session) != 0;
        if (child[t].has_blocks) { /* otherwise the child takes one when it needs it */
            if (child[t].fd >= 0)
                child[t].slot = mpshm__take_slot(session->control, child[t].fd);
            if (child[t].slot >= 0)
                for_retained(session, add_holder, child[t].slot);
            else
                for_retained(session, leak, -1);
        }
        if (child[t].fd >= 0 && (child[t].has_blocks || mpshm__fd_get(&session->sock) >= 0))
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

/* The parent's segments are foreign segments to the child. */
static void disown(struct mpshm__session *session)
{
    session->own = NULL;
    for (uint32_t a = 0; a < session->segment_top; a++) {
        struct mpshm__segment *segment = session->segments[a];
        if (segment == NULL || !segment->own)
            continue;
        segment->own = 0;
        /* The child must not register the parent's descriptor. */
        mpshm__fd_close(&segment->fd);
    }
}

/* The blocks of a child without a slot were leaked (see above), so a release must not free them. */
static void pin_leaked(struct mpshm__session *session)
{
    for (uint32_t a = 0; a < session->segment_top; a++)
        for (uint32_t i = 0;
             session->segments[a] != NULL && session->segments[a]->retained_blocks > 0 &&
             i < session->segments[a]->capacity;
             i++)
            if (session->segments[a]->local_refs[i] != 0)
                session->segments[a]->local_refs[i] += 0x40000000; /* never counts down to 0 */
}

/* Without a description of its own the child keeps the parent's alive, and the parent's memory
 * is kept until the child has ended. That is a leak, and the child has no slot. */
static void attach_in_child(struct mpshm__session *session, int t)
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
            for_retained(session, leak, -1);
        close_copies(t);
        /* This is the parent's, so a lock taken through it would also be the parent's. Its
         * device and inode are kept, so that the file can be opened again. */
        if (mpshm__fd_get(&session->control_fd) >= 0)
            close(session->control_fd.number);
        session->control_fd.number = -1;
    }
    if (session->slot >= 0)
        mpshm__sign_slot(&session->control->slots[session->slot], getpid());
    else
        pin_leaked(session);
}

static void in_child(void)
{
    mpshm__fd_drop_reserve();    /* they also share the parent's description */
    mpshm__handle_log_use(NULL); /* what the parent holds is the parent's */
    for (int t = 0; t < MPSHM__SESSIONS; t++)
        if (mpshm__sessions[t] != NULL && child[t].has_blocks) {
            attach_in_child(mpshm__sessions[t], t);
        } else if (mpshm__sessions[t] != NULL) {
            disown(mpshm__sessions[t]);
            mpshm__session_detach_in_child(t, child[t].fd, child[t].sock);
        }
    if (mpshm__sessions[0] != NULL)
        mpshm__fd_reserve(mpshm__fd_get(&mpshm__sessions[0]->control_fd));
    if (hook.after != NULL)
        hook.after(1);
    mpshm__reset_lock_in_child();
}

/* At load time, so that the first fork is covered. */
__attribute__((constructor)) static void arm(void)
{
    pthread_atfork(prepare, in_parent, in_child);
}

void mpshm__fork_handlers(void)
{
    /* The code that makes this process's session calls this, so that the linker takes this file
     * from the archive. */
}
