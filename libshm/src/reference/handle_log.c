/* The handle log: what a process holds of messages that lie in no ring, so that they die with it.
 *
 * Note [A reader that is killed]
 *   A message leaves the ring as bytes, and its handles are received when the bytes are unpickled.
 *   A reader that is killed in between has the only copy of the handles. So it notes them in its
 *   slot of the control file, and the reaper discards what a dead process has noted, as the reader
 *   itself does with a message that cannot be unpickled.
 *
 *        reader    writes the note: ABOUT                   1
 *                  moves the ring's head                    2   the message is the reader's
 *                  note: HELD                               3
 *                  note: FREE                               4   it is received
 *                  clears the in-flight bit                 5
 *
 *   Killed after 1, the message is still in the ring, and the next reader takes it. The reaper does
 *   not see the ring, so it leaves the blocks of an ABOUT note alone.
 *   Killed after 2, or after 4, the message stays in flight until the session ends: a leak, in some
 *   instructions for each handle, where the other order would free a block that is received.
 *   Killed after 3, the reaper clears the bit.
 *   The reaper is killed: it has removed a note before it clears the bit, so its successor does not
 *   clear it a second time, when it may stand for another message.
 *
 *   Handles that a call does not receive, because the program keeps them for later, stay in flight
 *   without a note when the call ends.
 *
 * Note [A writer that is killed]
 *   The same in the other direction: a message that is made for a ring is its writer's until it is
 *   in the ring. A writer may wait for room, or for a place in a queue, as long as the readers
 *   like.
 *
 *        writer    sets the in-flight bit                   1
 *                  note: HELD                               2   it pickles the rest, and waits
 *                  note: FREE                               3
 *                  begins the wake-up                       4   a reader may have it: wakeup.c
 *                  moves the ring's tail                    5   the message is a reader's
 *
 *   Killed after 1, or after 3: a leak, in some hundred instructions for each handle.
 *   Killed after 2, the reaper clears the bit.
 *   Killed after 4, a reader or the next writer moves the tail in its place. So the note goes
 *   before the wake-up, and not before the tail: the reaper would clear the bit of a message that
 *   is read. A queue may have any number of messages that wait for room. Most carry blocks that
 *   were made for them, and have no other message: there the note is the writer's slot in the
 *   block's own record (struct mpshm__sent), which stays behind when a message is discarded, and
 *   then means nothing. A message that is made for anything but a ring has no note: a process may
 *   send its bytes before it could remove one.
 *
 * A child of a fork has no notes. There is none either in a process without a slot, for a handle of
 * another session, and beyond MPSHM__LOGGED handles. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "base/process_lock.h"
#include "reference/reference.h"
#include "reference/handle_log.h"
#include "segment/mapped_segment.h"
#include "session/connection.h"
#include "session/own_session.h"
#include "session/process_slot.h"

#define OWN mpshm__own_handle_log

/* Find the notes of this process, which has a slot then: 0 or -errno. */
static int prepare(int may_wait)
{
    struct mpshm__session *session;
    int err = 0;

    if (atomic_load_explicit(&OWN.of_slot, memory_order_acquire) != NULL)
        return 0;
    if (!mpshm__lock_by_flags(may_wait ? 0 : MPSHM_NOWAIT))
        return -EAGAIN;
    session = mpshm__sessions[0];
    if (session == NULL || session->slot < 0)
        err = may_wait ? mpshm__own_session(&session) : -EAGAIN;
    if (err == 0 && session->slot < 0)
        err = mpshm__session_register(session);
    if (err == 0 && atomic_load(&OWN.of_slot) == NULL)
        mpshm__handle_log_use(session->control->handle_log[session->slot]);
    mpshm__unlock();
    return err;
}

/* The first note in use from `i` on; -1 when there is none. */
static int next_note(int i)
{
    for (int w = i / 64; w < MPSHM__LOGGED / 64; w++) {
        uint64_t used = atomic_load(&OWN.used[w]);
        if (w == i / 64)
            used &= UINT64_MAX << i % 64;
        if (used != 0)
            return w * 64 + __builtin_ctzll(used);
    }
    return -1;
}

#define FOR_EACH_NOTE(i) for (int i = next_note(0); i >= 0; i = next_note(i + 1))

static void remove_note(struct mpshm__logged *notes, int i)
{
    atomic_store(&notes[i].state, MPSHM__HANDLE_FREE);
    atomic_store(&OWN.number[i], 0);
    atomic_fetch_and(&OWN.used[i / 64], ~((uint64_t)1 << i % 64));
}

/* The place of a new note; -1 when all are in use. */
static int claim(uint64_t number)
{
    for (int w = 0; w < MPSHM__LOGGED / 64; w++) {
        uint64_t used = atomic_load(&OWN.used[w]);
        while (used != UINT64_MAX)
            if (atomic_compare_exchange_weak(&OWN.used[w], &used, used | (used + 1))) {
                int i = w * 64 + __builtin_ctzll(~used);
                atomic_store(&OWN.number[i], number);
                return i;
            }
    }
    return -1;
}

static int note(struct mpshm__logged *notes, const struct mpshm__handle *handle, uint64_t number,
                uint32_t state)
{
    int i = claim(number);

    if (i < 0)
        return -1;
    atomic_store_explicit(&notes[i].segment, handle->segment, memory_order_relaxed);
    atomic_store_explicit(&notes[i].segment_index, handle->segment_index, memory_order_relaxed);
    atomic_store_explicit(&notes[i].block, handle->block, memory_order_relaxed);
    atomic_store_explicit(&notes[i].message, handle->generation << 8 | handle->message,
                          memory_order_relaxed);
    atomic_store_explicit(&notes[i].state, state, memory_order_release);
    return 0;
}

static uint64_t begin(const void *data, uint64_t nbytes)
{
    static _Atomic uint64_t last;
    struct mpshm__logged *notes = atomic_load_explicit(&OWN.of_slot, memory_order_acquire);
    const unsigned char *at = data, *end = at + nbytes;
    uint64_t number = 0;

    if (notes == NULL)
        return 0;
    const unsigned char *id = mpshm__own_id();
    while ((size_t)(end - at) >= MPSHM_HANDLE_SIZE &&
           (at = memmem(at, (size_t)(end - at), id, MPSHM_ID_SIZE)) != NULL) {
        struct mpshm__handle handle;
        size_t rest = (size_t)(end - at);
        if (mpshm__handle_parse(at++, rest < sizeof(handle) ? rest : sizeof(handle), &handle) < 0)
            continue;
        at += sizeof(handle) - 1;
        if (number == 0)
            number = atomic_fetch_add(&last, 1) + 1;
        if (note(notes, &handle, number, MPSHM__HANDLE_ABOUT) < 0)
            break;
    }
    return number;
}

static void commit(uint64_t number)
{
    struct mpshm__logged *notes = atomic_load_explicit(&OWN.of_slot, memory_order_acquire);

    if (notes != NULL && number != 0)
        FOR_EACH_NOTE (i)
            if (atomic_load(&OWN.number[i]) == number)
                atomic_store(&notes[i].state, MPSHM__HANDLE_HELD);
}

void mpshm_handle_log_end(uint64_t number)
{
    struct mpshm__logged *notes = atomic_load_explicit(&OWN.of_slot, memory_order_acquire);

    if (notes != NULL && number != 0)
        FOR_EACH_NOTE (i)
            if (atomic_load(&OWN.number[i]) == number)
                remove_note(notes, i);
}

/* The mark of the only message of a block, whose bytes were copied for it; NULL for another handle.
 * No lock: this process keeps the segment as long as the message is its own. */
static _Atomic uint16_t *mark_of(const struct mpshm__handle *handle)
{
    const struct mpshm__session *session = mpshm__sessions[0];

    if (!handle->copied || session->slot < 0)
        return NULL;
    struct mpshm__segment *segment = session->segments[handle->segment_index];
    return segment == NULL || segment->nonce[0] != handle->segment
               ? NULL
               : &segment->sent[handle->block].writer;
}

static int parse_own(const unsigned char *bytes, struct mpshm__handle *handle)
{
    return mpshm__handle_parse(bytes, MPSHM_HANDLE_SIZE, handle) == 0 &&
           mpshm__is_own_session(handle->session);
}

void mpshm_handle_log_hold(const unsigned char *bytes)
{
    struct mpshm__handle handle;

    if (!parse_own(bytes, &handle))
        return;
    _Atomic uint16_t *mark = mark_of(&handle);
    if (mark != NULL)
        atomic_store(mark, (uint16_t)(mpshm__sessions[0]->slot + 1));
    else if (prepare(0) == 0)
        note(atomic_load(&OWN.of_slot), &handle, 0, MPSHM__HANDLE_HELD);
}

static int is_of(const struct mpshm__logged *note, uint64_t nonce, uint32_t index, uint32_t block,
                 uint32_t message)
{
    return atomic_load_explicit(&note->block, memory_order_relaxed) == block &&
           atomic_load_explicit(&note->message, memory_order_relaxed) == message &&
           atomic_load_explicit(&note->segment_index, memory_order_relaxed) == index &&
           atomic_load_explicit(&note->segment, memory_order_relaxed) == nonce;
}

static void forget(const struct mpshm__handle *handle)
{
    struct mpshm__logged *notes = atomic_load(&OWN.of_slot);

    if (notes != NULL)
        FOR_EACH_NOTE (i)
            if (is_of(&notes[i], handle->segment, handle->segment_index, handle->block,
                      handle->generation << 8 | handle->message) &&
                atomic_load(&notes[i].state) != MPSHM__HANDLE_FREE) {
                remove_note(notes, i);
                return;
            }
}

void mpshm__handle_log_forget(const struct mpshm__segment *segment,
                              const struct mpshm__handle *handle)
{
    if (mpshm__is_own_session(segment->session->id))
        forget(handle);
}

void mpshm_handle_log_drop(const unsigned char *bytes)
{
    struct mpshm__handle handle;

    if (!parse_own(bytes, &handle))
        return;
    _Atomic uint16_t *mark = mark_of(&handle);
    if (mark != NULL)
        atomic_store(mark, 0);
    else
        forget(&handle);
}

const mpshm_handle_log *mpshm_own_handle_log(void)
{
    static const mpshm_handle_log log = {prepare, begin, commit};

    return &log;
}

void mpshm__handle_log_discard(struct mpshm__session *session, int slot)
{
    for (int i = 0; i < MPSHM__LOGGED; i++) {
        struct mpshm__logged *note = &session->control->handle_log[slot][i];
        uint32_t state = atomic_exchange(&note->state, MPSHM__HANDLE_FREE);
        uint32_t index = atomic_load(&note->segment_index), block = atomic_load(&note->block);
        uint32_t message = atomic_load(&note->message);
        /* A process has written this: each number is checked. */
        struct mpshm__segment *segment = index < MPSHM__SEGMENTS ? session->segments[index] : NULL;
        if (state != MPSHM__HANDLE_HELD || segment == NULL ||
            segment->nonce[0] != atomic_load(&note->segment) || block >= mpshm__used(segment))
            continue;
        uint64_t now = atomic_load(&segment->blocks[block].state);
        if (now & MPSHM__LIVE && MPSHM__GENERATION(now) == message >> 8)
            mpshm__clear_in_flight(&segment->blocks[block], message & 0xff);
    }
}
