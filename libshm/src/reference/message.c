/* Messages: a sender writes a handle for one receiver, which takes a reference to the block or
 * copies its bytes. A message in flight is a reference: see segment_file.h, Note [References]. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/process_lock.h"
#include "platform/platform.h"
#include "reference/block.h"
#include "reference/handle.h"
#include "reference/message_timeout.h"
#include "reference/message_origin.h"
#include "reference/handle_log.h"
#include "segment/segment.h"
#include "session/connection.h"
#include "session/own_session.h"

/* ---- send ---- */

int mpshm_block_send(const mpshm_block *ref, int flags, unsigned char *bytes)
{
    struct mpshm__segment *segment = ref->segment;
    struct mpshm__session *session = segment->session;
    struct mpshm__block *block = &segment->blocks[ref->index];
    struct mpshm__handle handle = {
        .segment_index = segment->index, .block = ref->index, .nbytes = ref->nbytes};
    struct mpshm__logged *note = NULL;
    int is_noted = (flags & MPSHM_NOTED) != 0;
    uint64_t state, out, bit;

    /* No lock: the caller's reference keeps the block alive, and every change is atomic. */
    memcpy(handle.session, session->id, MPSHM_ID_SIZE);
    handle.segment = segment->nonce[0];
    state = atomic_load(&block->state);
    handle.generation = MPSHM__GENERATION(state) & 0xffffffu;
    handle.copied = (flags & MPSHM_COPY) != 0;
    handle.deadline =
        flags & MPSHM_LASTING || ref->nbytes == 0 ? MPSHM__NEVER : mpshm__message_deadline();
    mpshm__note_deadline(session->control, segment, ref->index, handle.generation, handle.deadline);

    out = atomic_load(&block->in_flight);
    if (out == 0)
        mpshm__note_origin(session, segment, ref->index, is_noted && handle.copied);
    if (is_noted && !handle.copied)
        note = mpshm__handle_log_note(&handle);
    do {
        if (out == UINT64_MAX) {
            handle.message = MPSHM__NO_BIT;
            mpshm__handle_log_choose(note, &handle);
            atomic_fetch_add(&block->in_flight_overflow, 1);
            break;
        }
        /* The search begins at another bit for each message, so that a handle that was received
         * once is not valid again for the next message. */
        unsigned from = (unsigned)(state & 63);
        uint64_t free = ~out, turned = from ? free >> from | free << (64 - from) : free;
        handle.message = ((unsigned)__builtin_ctzll(turned) + from) % 64;
        mpshm__handle_log_choose(note, &handle);
        bit = (uint64_t)1 << handle.message;
    } while (!atomic_compare_exchange_weak(&block->in_flight, &out, out | bit));
    mpshm__handle_log_hold(note);
    atomic_fetch_add(&block->state, 1); /* afterwards: see Note [References] */
    mpshm__handle_write(&handle, bytes);
    return 0;
}

int mpshm_handle_info(const unsigned char *bytes, size_t len, uint64_t *nbytes)
{
    struct mpshm__handle handle;
    int err = mpshm__handle_parse(bytes, len, &handle);

    if (err < 0)
        return err;
    *nbytes = handle.nbytes;
    return handle.copied;
}

/* ---- receive ---- */

/* Attach the segment of a handle and look up its block. With MPSHM_NOWAIT only a session and a
 * segment that are attached already will do. `with_slot` takes a slot first. */
static int find_block(const struct mpshm__handle *handle, int flags, int with_slot,
                      struct mpshm__session **session, struct mpshm__segment **segment)
{
    int err;

    if (mpshm__has_expired(handle))
        return -ETIME;
    if ((flags & MPSHM_NOWAIT) && !mpshm__session_is_attached(handle->session))
        return -EAGAIN;
    err = mpshm__session_attach(handle->session, mpshm__is_own_session(handle->session), session);
    if (err == 0 && (flags & MPSHM_NOWAIT) &&
        ((*session)->slot < 0 ||
         !mpshm__segment_is_attached(*session, handle->segment_index, handle->segment)))
        err = -EAGAIN;
    if (err == 0 && with_slot && (*session)->slot < 0)
        err = mpshm__session_register(*session);
    if (err == 0)
        err = mpshm__segment_attach(*session, handle->segment_index, handle->segment, segment);
    if (err < 0)
        return err;
    if (handle->block >= mpshm__used(*segment))
        return -EBADMSG;
    return mpshm__is_live(atomic_load(&(*segment)->blocks[handle->block].state), handle->generation)
               ? 0
               : -ESTALE;
}

/* The tables are in memory that other processes can write to. */
static int is_inside(const struct mpshm__segment *segment, uint64_t at, uint64_t nbytes)
{
    return nbytes <= segment->room && at <= segment->room - nbytes;
}

static int receive(const struct mpshm__handle *handle, int flags, mpshm_block *out)
{
    struct mpshm__session *session;
    struct mpshm__segment *segment;
    int err = find_block(handle, flags, 1, &session, &segment);

    if (err < 0)
        return err;
    struct mpshm__block *block = &segment->blocks[handle->block];
    if (segment->local_refs[handle->block] & MPSHM__PRIVATE)
        return -ESTALE;
    mpshm__retain(session, segment, handle->block);
    /* From here on it cannot be freed. The version tells whether it was freed before. */
    if (!mpshm__is_live(atomic_fetch_add(&block->state, 1), handle->generation) ||
        atomic_load(&block->nbytes) != handle->nbytes)
        err = -ESTALE;
    else
        err = mpshm__handle_log_receive(segment, handle);
    if (err == 0) {
        mpshm__block_fill(out, segment, handle->block);
        if (is_inside(segment, (uint64_t)((char *)out->data - segment->data), out->nbytes))
            return 0;
        err = -EBADMSG;
    }
    mpshm__release(session, segment, handle->block);
    return err;
}

/* A message that expired while it was received was freed meanwhile. */
static int reason(int err, const struct mpshm__handle *handle)
{
    return err == -ESTALE && mpshm__has_expired(handle) ? -ETIME : err;
}

int mpshm_block_receive(const unsigned char *bytes, size_t len, int flags, mpshm_block *out)
{
    struct mpshm__handle handle;
    int err = mpshm__handle_parse(bytes, len, &handle);

    if (err < 0)
        return err;
    if (!mpshm__lock_by_flags(flags))
        return -EAGAIN;
    err = receive(&handle, flags, out);
    mpshm__unlock();
    return reason(err, &handle);
}

int mpshm_handle_alive(const unsigned char *bytes, size_t len)
{
    struct mpshm__handle handle;
    struct mpshm__session *session;
    struct mpshm__segment *segment;

    if (mpshm__handle_parse(bytes, len, &handle) < 0 || !mpshm__lock_by_flags(MPSHM_NOWAIT))
        return 0;
    int alive = find_block(&handle, MPSHM_NOWAIT, 0, &session, &segment) == 0;
    mpshm__unlock();
    return alive;
}

/* ---- by value ---- */

/* Note [Without a slot]
 *   A process without a slot has no holder bit. While it copies the bytes out, one more message,
 *   which will never be received, keeps the block alive. A process that is killed meanwhile leaves
 *   a leak, as if the message had never been received. */
static void retain_by_message(struct mpshm__block *block)
{
    atomic_fetch_add(&block->in_flight_overflow, 1);
    atomic_fetch_add(&block->state, 1);
}

/* Copy the bytes to `data` in a process that has no address space left to map their segment (ulimit
 * -v). Without the tables the in-flight bit cannot be cleared, so the block stays until the session
 * ends: a leak, where the bytes would be lost. */
static int read_out(const struct mpshm__handle *handle, void *data)
{
    struct mpshm__session *session;
    int err =
        mpshm__session_attach(handle->session, mpshm__is_own_session(handle->session), &session);
    int fd = err < 0 ? err : mpshm__segment_open(session, handle->segment_index, handle->segment);

    if (fd < 0)
        return fd;
    err =
        mpshm__segment_read(fd, &session->control->segments[handle->segment_index], session->id,
                            session->user, handle->block, handle->generation, data, handle->nbytes);
    close(fd);
    return err;
}

/* Copy the bytes to `data`, unless it is NULL, and receive the message. */
static int copy_out(const struct mpshm__handle *handle, void *data)
{
    struct mpshm__session *session;
    struct mpshm__segment *segment;
    int err = find_block(handle, 0, 0, &session, &segment);

    if (err == -ENOMEM && data != NULL)
        return read_out(handle, data);
    if (err < 0)
        return err;
    struct mpshm__block *block = &segment->blocks[handle->block];
    retain_by_message(block);
    /* It was freed before that, so another block was retained. To undo it could take away a message
     * of that block. The price is a leak, after a handle that was used twice. */
    if (!mpshm__is_live(atomic_load(&block->state), handle->generation))
        return -ESTALE;
    uint64_t at = mpshm__offset(segment, handle->block);
    if (atomic_load(&block->nbytes) != handle->nbytes)
        err = -ESTALE;
    else if (!is_inside(segment, at, handle->nbytes))
        err = -EBADMSG;
    if (err == 0 && data != NULL)
        memcpy(data, segment->data + at, handle->nbytes);
    if (err == 0)
        err = mpshm__handle_log_receive(segment, handle);
    mpshm__clear_in_flight(block, MPSHM__NO_BIT); /* of retain_by_message */
    mpshm__try_free(session->control, segment, handle->block);
    return err;
}

struct copy {
    const struct mpshm__handle *handle;
    void *data;
};

static int copy_out_locked(void *of)
{
    struct copy *copy = of;

    mpshm__lock();
    int err = copy_out(copy->handle, copy->data);
    mpshm__unlock();
    return reason(err, copy->handle);
}

static int copy_out_somehow(const struct mpshm__handle *handle, void *data)
{
    struct copy copy = {handle, data};
    int err = copy_out_locked(&copy);

    return err == -EMFILE ? mpshm__call_with_own_descriptors(copy_out_locked, &copy) : err;
}

int mpshm_block_read(const unsigned char *bytes, size_t len, void *data, uint64_t nbytes)
{
    struct mpshm__handle handle;
    int err = mpshm__handle_parse(bytes, len, &handle);

    if (err < 0)
        return err;
    if (!handle.copied || handle.nbytes != nbytes)
        return -EINVAL;
    return copy_out_somehow(&handle, data);
}

int mpshm_block_discard(const unsigned char *bytes, size_t len)
{
    struct mpshm__handle handle;
    int err = mpshm__handle_parse(bytes, len, &handle);

    if (err < 0)
        return err;
    mpshm_handle_log_drop(&bytes, 1); /* of a message that this process has in hand */
    return copy_out_somehow(&handle, NULL);
}
