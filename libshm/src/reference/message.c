/* Messages: a handle is written for one receiver, who claims the block or takes its bytes. */
#define _GNU_SOURCE
#include <string.h>

#include "internal.h"

/* What travels in a message. `check` covers all before it, so that a damaged handle is told from a
 * stale one; it is no secret and protects against accidents only. */
struct handle {
    unsigned char session[MPSHM_ID_SIZE];
    uint64_t segment;       /* first half of its nonce */
    uint32_t segment_index; /* of the segment in the control file */
    uint32_t block;
    uint32_t generation;
    uint32_t message; /* which bit of `outstanding`, IN_FLIGHT_OVERFLOW for none; and COPY */
    uint64_t nbytes;
    uint64_t check;
};

enum { IN_FLIGHT_OVERFLOW = 64, COPY = 1 << 16 };

_Static_assert(sizeof(struct handle) == MPSHM_HANDLE_SIZE, "the size of a handle is public");

/* ---- send ---- */

static uint64_t checksum(const struct handle *handle)
{
    uint64_t words[offsetof(struct handle, check) / 8], h = 0xcbf29ce484222325u;

    memcpy(words, handle, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / 8; i++) {
        h = (h ^ words[i]) * 0x9e3779b97f4a7c15u; /* odd, so no change of one word is lost */
        h ^= h >> 32;
    }
    return h;
}

int mpshm_block_send(const mpshm_block *ref, int flags, unsigned char *bytes)
{
    struct mpshm__segment *segment = ref->segment;
    struct mpshm__session *session = segment->session;
    struct mpshm__block *block = &segment->blocks[ref->index];
    struct handle handle = {
        .segment_index = segment->index, .block = ref->index, .nbytes = ref->nbytes};
    uint64_t state, out, bit;

    /* No lock: the caller's hold keeps the block alive, and all that changes is atomic. */
    memcpy(handle.session, session->id, MPSHM_ID_SIZE);
    handle.segment = segment->nonce[0];
    state = atomic_load(&block->state);
    handle.generation = MPSHM__GENERATION(state);

    out = atomic_load(&block->in_flight);
    do {
        if (out == UINT64_MAX) {
            atomic_fetch_add(&block->in_flight_overflow, 1);
            handle.message = IN_FLIGHT_OVERFLOW;
            break;
        }
        /* The search begins at another bit for each message, so that a handle that was used once
         * is not good again for the next message. */
        unsigned from = (unsigned)(state & 63);
        uint64_t free = ~out, turned = from ? free >> from | free << (64 - from) : free;
        handle.message = ((unsigned)__builtin_ctzll(turned) + from) % 64;
        bit = (uint64_t)1 << handle.message;
    } while (!atomic_compare_exchange_weak(&block->in_flight, &out, out | bit));
    atomic_fetch_add(&block->state, 1); /* after, see Note [References] */
    if (flags & MPSHM_COPY)
        handle.message |= COPY;

    handle.check = checksum(&handle);
    memcpy(bytes, &handle, sizeof(handle));
    return 0;
}

/* ---- claim ---- */

static int clear_in_flight(struct mpshm__block *block, uint32_t message)
{
    if (message < IN_FLIGHT_OVERFLOW) {
        uint64_t bit = (uint64_t)1 << message;
        return atomic_fetch_and(&block->in_flight, ~bit) & bit ? 0 : -ESTALE;
    }
    uint32_t n = atomic_load(&block->in_flight_overflow);
    do {
        if (n == 0)
            return -ESTALE;
    } while (!atomic_compare_exchange_weak(&block->in_flight_overflow, &n, n - 1));
    return 0;
}

static int is_live(uint64_t state, uint32_t generation)
{
    return (state & MPSHM__LIVE) && MPSHM__GENERATION(state) == (generation & 0xffffffu);
}

static int claim(const struct handle *handle, int flags, mpshm_block *out)
{
    struct mpshm__session *session;
    struct mpshm__segment *segment;
    struct mpshm__block *block;
    int err = 0;

    if ((flags & MPSHM_NOWAIT) && !mpshm__session_is_attached(handle->session))
        return -EAGAIN;
    err = mpshm__session_attach(handle->session, mpshm__is_own_session(handle->session), &session);
    if (err == 0 && (flags & MPSHM_NOWAIT) &&
        (session->slot < 0 ||
         !mpshm__segment_is_attached(session, handle->segment_index, handle->segment)))
        err = -EAGAIN;
    if (err == 0 && session->slot < 0)
        err = mpshm__session_register(session);
    if (err == 0)
        err = mpshm__segment_attach(session, handle->segment_index, handle->segment, &segment);
    if (err < 0)
        return err;
    if (handle->block >= mpshm__used(segment))
        return -EBADMSG;
    block = &segment->blocks[handle->block];
    if (!is_live(atomic_load(&block->state), handle->generation) ||
        (segment->local_refs[handle->block] & MPSHM__PRIVATE))
        return -ESTALE;
    mpshm__retain(session, segment, handle->block);
    /* Now it cannot be freed, unless it was already: the epoch tells. */
    if (!is_live(atomic_fetch_add(&block->state, 1), handle->generation) ||
        atomic_load(&block->nbytes) != handle->nbytes)
        err = -ESTALE;
    else
        err = clear_in_flight(block, handle->message & ~(uint32_t)COPY);
    if (err < 0) {
        mpshm__release(session, segment, handle->block);
        return err;
    }
    mpshm__block_fill(out, segment, handle->block);
    if (out->nbytes > segment->room ||
        (uint64_t)((char *)out->data - segment->data) > segment->room - out->nbytes) {
        mpshm__release(session, segment, handle->block);
        return -EBADMSG; /* a descriptor that somebody has written over */
    }
    return 0;
}

static int parse(const unsigned char *bytes, size_t len, struct handle *handle)
{
    if (len != sizeof(*handle))
        return -EBADMSG;
    memcpy(handle, bytes, sizeof(*handle));
    if (handle->check != checksum(handle) ||
        (handle->message & ~(uint32_t)COPY) > IN_FLIGHT_OVERFLOW)
        return -EBADMSG;
    return 0;
}

int mpshm_handle_info(const unsigned char *bytes, size_t len, uint64_t *nbytes)
{
    struct handle handle;
    int err = parse(bytes, len, &handle);

    if (err < 0)
        return err;
    *nbytes = handle.nbytes;
    return (handle.message & COPY) != 0;
}

int mpshm_handle_alive(const unsigned char *bytes, size_t len)
{
    struct handle handle;
    struct mpshm__session *session;
    struct mpshm__segment *segment;
    int alive = 0;

    if (parse(bytes, len, &handle) < 0 || !mpshm__lock_by_flags(MPSHM_NOWAIT))
        return 0;
    if (mpshm__session_is_attached(handle.session) &&
        mpshm__session_attach(handle.session, mpshm__is_own_session(handle.session), &session) ==
            0 &&
        session->slot >= 0 &&
        mpshm__segment_is_attached(session, handle.segment_index, handle.segment) &&
        mpshm__segment_attach(session, handle.segment_index, handle.segment, &segment) == 0 &&
        handle.block < mpshm__used(segment))
        alive = is_live(atomic_load(&segment->blocks[handle.block].state), handle.generation);
    mpshm__unlock();
    return alive;
}

int mpshm_block_receive(const unsigned char *bytes, size_t len, int flags, mpshm_block *out)
{
    struct handle handle;
    int err = parse(bytes, len, &handle);

    if (err < 0)
        return err;
    if (!mpshm__lock_by_flags(flags))
        return -EAGAIN;
    err = claim(&handle, flags, out);
    mpshm__unlock();
    return err;
}

/* ---- by value ---- */

/* Note [Without a slot]
 *   Who has no slot cannot say that it holds a block. While it copies the bytes out, one more
 *   message that nobody will claim keeps the block alive. Killed here: it leaks, as if it had never
 *   been read. */
static void retain_by_message(struct mpshm__block *block)
{
    atomic_fetch_add(&block->in_flight_overflow, 1);
    atomic_fetch_add(&block->state, 1);
}

/* `data` NULL: the message is only taken away. */
static int copy_out(const struct handle *handle, void *data)
{
    struct mpshm__session *session;
    struct mpshm__segment *segment;
    int err =
        mpshm__session_attach(handle->session, mpshm__is_own_session(handle->session), &session);

    if (err == 0)
        err = mpshm__segment_attach(session, handle->segment_index, handle->segment, &segment);
    if (err < 0)
        return err;
    if (handle->block >= mpshm__used(segment))
        return -EBADMSG;
    struct mpshm__block *block = &segment->blocks[handle->block];
    if (!is_live(atomic_load(&block->state), handle->generation))
        return -ESTALE;
    retain_by_message(block);
    /* Freed before that: then it was not this block that was kept, and to take it back could take
     * somebody's message away. A leak, after a handle that was used twice. */
    if (!is_live(atomic_load(&block->state), handle->generation))
        return -ESTALE;
    uint64_t at = (uint64_t)atomic_load(&block->where) * 64;
    if (atomic_load(&block->nbytes) != handle->nbytes)
        err = -ESTALE;
    else if (handle->nbytes > segment->room || at > segment->room - handle->nbytes)
        err = -EBADMSG;
    if (err == 0 && data != NULL)
        memcpy(data, segment->data + at, handle->nbytes);
    if (err == 0)
        err = clear_in_flight(block, handle->message & ~(uint32_t)COPY);
    clear_in_flight(block, IN_FLIGHT_OVERFLOW); /* ours */
    mpshm__try_free(session->control, segment, handle->block);
    return err;
}

int mpshm_block_read(const unsigned char *bytes, size_t len, void *data, uint64_t nbytes)
{
    struct handle handle;
    int err = parse(bytes, len, &handle);

    if (err < 0)
        return err;
    if (!(handle.message & COPY) || handle.nbytes != nbytes)
        return -EINVAL;
    mpshm__lock();
    err = copy_out(&handle, data);
    mpshm__unlock();
    return err;
}

int mpshm_block_discard(const unsigned char *bytes, size_t len)
{
    struct handle handle;
    int err = parse(bytes, len, &handle);

    if (err < 0)
        return err;
    mpshm__lock();
    err = copy_out(&handle, NULL);
    mpshm__unlock();
    return err;
}
