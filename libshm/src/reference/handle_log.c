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
 *   Killed after 2, or after 4, the message stays in flight until the session ends: a leak, where
 *   the other order would free a block that is received. Only stores stand between the two.
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
 *        writer    writes the note: ABOUT
 *                  sets the in-flight bit                   1
 *                  note: HELD                               2   it pickles the rest, and waits
 *                  notes of all handles: FREE               3
 *                  begins the wake-up                       4   a reader may have it: wakeup.c
 *                  moves the ring's tail                    5   the message is a reader's
 *
 *   Killed after 1, or after 3: a leak, in a few instructions for each handle. So the notes of all
 *   handles are found before the first of them is removed.
 *   Killed after 2, the reaper clears the bit.
 *   Killed after 4, a reader or the next writer moves the tail in its place. So the note goes
 *   before the wake-up, and not before the tail: the reaper would clear the bit of a message that
 *   is read. A queue may have any number of messages that wait for room. Most carry blocks that
 *   were made for them, and have no other message: there the note is the writer's slot in the
 *   block's own record (struct mpshm__sent), written before the bit, without which it means nothing.
 *   A message that is made for anything but a ring has no note: a process may send its bytes before
 *   it could remove one.
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

/* Each note in use. A few instructions each: a kill leaks between two of them. */
#define FOR_EACH_NOTE(i)                                                                           \
    for (int w = 0, i; w < MPSHM__LOGGED / 64; w++)                                                \
        for (uint64_t u = atomic_load_explicit(&OWN.used[w], memory_order_relaxed);                \
             u != 0 && (i = w * 64 + __builtin_ctzll(u), 1); u &= u - 1)

/* A free note may be used again. */
static void return_note(int i)
{
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

/* Write a note that counts for nothing yet: its place, or -1. */
static int note(struct mpshm__logged *notes, const struct mpshm__handle *handle, uint64_t number)
{
    int i = claim(number);

    if (i < 0)
        return -1;
    atomic_store_explicit(&notes[i].segment, handle->segment, memory_order_relaxed);
    atomic_store_explicit(&notes[i].segment_index, handle->segment_index, memory_order_relaxed);
    atomic_store_explicit(&notes[i].block, handle->block, memory_order_relaxed);
    mpshm__handle_log_choose(&notes[i], handle);
    atomic_store_explicit(&notes[i].state, MPSHM__HANDLE_ABOUT, memory_order_release);
    return i;
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
        if (note(notes, &handle, number) < 0)
            break;
    }
    return number;
}

static void commit(uint64_t number)
{
    struct mpshm__logged *notes = atomic_load_explicit(&OWN.of_slot, memory_order_acquire);

    if (notes != NULL && number != 0)
        FOR_EACH_NOTE (i)
            if (atomic_load_explicit(&OWN.number[i], memory_order_relaxed) == number)
                mpshm__handle_log_hold(&notes[i]);
}

void mpshm_handle_log_end(uint64_t number)
{
    struct mpshm__logged *notes = atomic_load_explicit(&OWN.of_slot, memory_order_acquire);

    if (notes != NULL && number != 0)
        FOR_EACH_NOTE (i)
            if (atomic_load(&OWN.number[i]) == number) {
                atomic_store(&notes[i].state, MPSHM__HANDLE_FREE);
                return_note(i);
            }
}

/* The mark of the only message of a block, whose bytes were copied for it; NULL for another handle.
 * No lock: this process keeps the segment as long as the message is its own. */
static _Atomic uint16_t *mark_of(const struct mpshm__handle *handle)
{
    const struct mpshm__session *session = mpshm__sessions[0];

    if (!handle->copied || session == NULL || session->slot < 0)
        return NULL;
    struct mpshm__segment *segment = session->segments[handle->segment_index];
    return segment == NULL || segment->nonce[0] != handle->segment
               ? NULL
               : &segment->sent[handle->block].writer;
}

struct mpshm__logged *mpshm__handle_log_note(const struct mpshm__handle *handle)
{
    if (!mpshm__is_own_session(handle->session) || prepare(0) < 0)
        return NULL;
    struct mpshm__logged *notes = atomic_load(&OWN.of_slot);
    int i = note(notes, handle, 0);
    return i < 0 ? NULL : &notes[i];
}

static int is_of(const struct mpshm__logged *note, const struct mpshm__handle *handle)
{
    return atomic_load_explicit(&note->block, memory_order_relaxed) == handle->block &&
           atomic_load_explicit(&note->message, memory_order_relaxed) ==
               mpshm__message_of(handle) &&
           atomic_load_explicit(&note->segment_index, memory_order_relaxed) ==
               handle->segment_index &&
           atomic_load_explicit(&note->segment, memory_order_relaxed) == handle->segment;
}

/* The place of the note of a handle of this session; -1 when it has none. */
static int find(const struct mpshm__handle *handle)
{
    const struct mpshm__logged *notes = atomic_load(&OWN.of_slot);

    if (notes != NULL)
        FOR_EACH_NOTE (i)
            if (is_of(&notes[i], handle) && atomic_load(&notes[i].state) != MPSHM__HANDLE_FREE)
                return i;
    return -1;
}

int mpshm__handle_log_receive(struct mpshm__segment *segment, const struct mpshm__handle *handle)
{
    struct mpshm__block *block = &segment->blocks[handle->block];
    int note = mpshm__is_own_session(segment->session->id) ? find(handle) : -1;

    if (note < 0)
        return mpshm__clear_in_flight(block, handle->message);
    atomic_store(&atomic_load(&OWN.of_slot)[note].state, MPSHM__HANDLE_FREE);
    int err = mpshm__clear_in_flight(block, handle->message);
    return_note(note);
    return err;
}

void mpshm_handle_log_drop(const unsigned char *const *handles, int count)
{
    struct mpshm__logged *notes = atomic_load(&OWN.of_slot);
    _Atomic uint16_t *marks[MPSHM_DROPPED];
    _Atomic uint32_t *states[MPSHM_DROPPED];
    uint64_t used[MPSHM__LOGGED / 64] = {0};
    int marked = 0, noted = 0;

    for (int i = 0; i < count; i++) {
        struct mpshm__handle handle;
        if (mpshm__handle_parse(handles[i], MPSHM_HANDLE_SIZE, &handle) < 0 ||
            !mpshm__is_own_session(handle.session))
            continue;
        _Atomic uint16_t *mark = mark_of(&handle);
        int k = mark == NULL ? find(&handle) : -1;
        if (mark != NULL)
            marks[marked++] = mark;
        else if (k >= 0) {
            states[noted++] = &notes[k].state;
            used[k / 64] |= (uint64_t)1 << k % 64;
        }
    }
    for (int i = 0; i < marked; i++)
        atomic_store_explicit(marks[i], 0, memory_order_release);
    for (int i = 0; i < noted; i++)
        atomic_store_explicit(states[i], MPSHM__HANDLE_FREE, memory_order_release);
    for (int w = 0; noted > 0 && w < MPSHM__LOGGED / 64; w++)
        atomic_fetch_and(&OWN.used[w], ~used[w]); /* `number` is 0 */
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
