/* The messages that a process has taken from a ring, and whose blocks it has not received yet.
 *
 * Note [A reader that is killed]
 *   A message leaves the ring as bytes, and its handles are received when the bytes are unpickled.
 *   A reader that is killed in between has the only copy of the handles. So it notes them in its
 *   slot of the control file, and the reaper discards what a dead process has noted, as the reader
 *   itself does with a message that cannot be unpickled.
 *
 *        reader    writes the note: ABOUT                   1
 *                  moves the ring's head                    2   the message is the reader's
 *                  note: BY_READER                          3
 *                  note: FREE                               4   it is received
 *                  clears the in-flight bit                 5
 *
 *   Killed after 1, the message is still in the ring, and the next reader takes it. The reaper does
 *   not see the ring, so it leaves the blocks of an ABOUT note alone.
 *   Killed after 2, or after 4, the message stays in flight until the session ends: a leak, within
 *   two stores of each other, where the other order would free a block that is received.
 *   Killed after 3, the reaper clears the bit.
 *   The reaper is killed: it has removed a note before it clears the bit, so its successor does not
 *   clear it a second time, when it may stand for another message.
 *
 *   Handles that a call does not receive, because the program keeps them for later, stay in flight
 *   without a note when the call ends. A child of a fork has no notes. There is none either in a
 *   process without a slot, for a handle of another session, and beyond MPSHM__TAKEN handles. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "base/process_lock.h"
#include "reference/reference.h"
#include "reference/taken.h"
#include "segment/mapped_segment.h"
#include "session/connection.h"
#include "session/own_session.h"
#include "session/process_slot.h"

#define OWN mpshm__own_taken

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
        mpshm__taken_use(session->control->taken[session->slot]);
    mpshm__unlock();
    return err;
}

static void remove_note(struct mpshm__taken *notes, int i)
{
    atomic_store(&notes[i].state, MPSHM__TAKEN_FREE);
    atomic_store(&OWN.number[i], 0);
    atomic_fetch_and(&OWN.used, ~((uint32_t)1 << i));
}

/* The place of a new note; -1 when all are in use. */
static int claim(uint64_t number)
{
    uint32_t used = atomic_load(&OWN.used);

    do {
        if (used == ((uint64_t)1 << MPSHM__TAKEN) - 1)
            return -1;
    } while (!atomic_compare_exchange_weak(&OWN.used, &used, used | (used + 1)));
    int i = __builtin_ctz(~used);
    atomic_store(&OWN.number[i], number);
    return i;
}

static uint64_t begin(const void *data, uint64_t nbytes)
{
    static _Atomic uint64_t last;
    struct mpshm__taken *notes = atomic_load_explicit(&OWN.of_slot, memory_order_acquire);
    const unsigned char *at = data, *end = at + nbytes;
    uint64_t number = 0;
    int i;

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
        if ((i = claim(number)) < 0)
            break;
        atomic_store_explicit(&notes[i].segment, handle.segment, memory_order_relaxed);
        atomic_store_explicit(&notes[i].segment_index, handle.segment_index, memory_order_relaxed);
        atomic_store_explicit(&notes[i].block, handle.block, memory_order_relaxed);
        atomic_store_explicit(&notes[i].message, handle.generation << 8 | handle.message,
                              memory_order_relaxed);
        atomic_store_explicit(&notes[i].state, MPSHM__TAKEN_ABOUT, memory_order_release);
    }
    return number;
}

static void commit(uint64_t number)
{
    struct mpshm__taken *notes = atomic_load_explicit(&OWN.of_slot, memory_order_acquire);
    uint32_t used = notes == NULL ? 0 : atomic_load(&OWN.used);

    for (; used != 0; used &= used - 1) {
        int i = __builtin_ctz(used);
        if (atomic_load(&OWN.number[i]) == number)
            atomic_store(&notes[i].state, MPSHM__TAKEN_BY_READER);
    }
}

const mpshm_taking *mpshm_notes(void)
{
    static const mpshm_taking notes = {prepare, begin, commit};

    return &notes;
}

void mpshm_taken_end(uint64_t number)
{
    struct mpshm__taken *notes = atomic_load_explicit(&OWN.of_slot, memory_order_acquire);
    uint32_t used = notes == NULL || number == 0 ? 0 : atomic_load(&OWN.used);

    for (; used != 0; used &= used - 1) {
        int i = __builtin_ctz(used);
        if (atomic_load(&OWN.number[i]) == number)
            remove_note(notes, i);
    }
}

static int is_of(const struct mpshm__taken *note, uint64_t nonce, uint32_t index, uint32_t block,
                 uint32_t message)
{
    return atomic_load_explicit(&note->block, memory_order_relaxed) == block &&
           atomic_load_explicit(&note->message, memory_order_relaxed) == message &&
           atomic_load_explicit(&note->segment_index, memory_order_relaxed) == index &&
           atomic_load_explicit(&note->segment, memory_order_relaxed) == nonce;
}

void mpshm__taken_forget(const struct mpshm__segment *segment, const struct mpshm__handle *handle)
{
    uint32_t used = atomic_load(&OWN.used);

    if (used == 0 || !mpshm__is_own_session(segment->session->id))
        return;
    struct mpshm__taken *notes = atomic_load(&OWN.of_slot);
    for (; notes != NULL && used != 0; used &= used - 1) {
        int i = __builtin_ctz(used);
        if (is_of(&notes[i], handle->segment, handle->segment_index, handle->block,
                  handle->generation << 8 | handle->message) &&
            atomic_load(&notes[i].state) != MPSHM__TAKEN_FREE)
            remove_note(notes, i);
    }
}

void mpshm__taken_discard(struct mpshm__session *session, int slot)
{
    for (int i = 0; i < MPSHM__TAKEN; i++) {
        struct mpshm__taken *note = &session->control->taken[slot][i];
        uint32_t state = atomic_exchange(&note->state, MPSHM__TAKEN_FREE);
        uint32_t index = atomic_load(&note->segment_index), block = atomic_load(&note->block);
        uint32_t message = atomic_load(&note->message);
        /* A process has written this: each number is checked. */
        struct mpshm__segment *segment = index < MPSHM__SEGMENTS ? session->segments[index] : NULL;
        if (state != MPSHM__TAKEN_BY_READER || segment == NULL ||
            segment->nonce[0] != atomic_load(&note->segment) || block >= mpshm__used(segment))
            continue;
        uint64_t now = atomic_load(&segment->blocks[block].state);
        if (now & MPSHM__LIVE && MPSHM__GENERATION(now) == message >> 8)
            mpshm__clear_in_flight(&segment->blocks[block], message & 0xff);
    }
}
