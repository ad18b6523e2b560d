/* The messages that wait in a channel, counted by a process that has no end of it. It maps the
 * memory for reading only and takes no lock, so it disturbs nobody and waits for nobody. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "channel/channel.h"
#include "segment/memory_object.h"

/* Count the records between head and tail. A reader may take them meanwhile, and a writer may write
 * where they were: a record counts if head has not passed it when it has been read. */
static mpshm_unread count(const struct mpshm__ring *ring, const char *data)
{
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    uint64_t at = atomic_load_explicit(&ring->head, memory_order_acquire);
    mpshm_unread found = {0};

    /* A record that is longer than the rest, or a rest that is longer than the ring, is damaged. */
    while (at < tail && tail - at <= MPSHM__RING_BYTES) {
        struct mpshm__record record;
        memcpy(&record, data + at % MPSHM__RING_BYTES, sizeof(record));
        atomic_thread_fence(memory_order_acquire);
        uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
        if (head > at) {
            at = head;
            memset(&found, 0, sizeof(found));
            continue;
        }
        uint64_t size = mpshm__record_size(record.nbytes);
        if (size > tail - at)
            break;
        found.messages += record.kind == MPSHM__WHOLE || record.kind == MPSHM__FIRST;
        found.nbytes += size;
        at += size;
    }
    return found;
}

int mpshm_channel_unread(int object, mpshm_unread *out)
{
    struct stat st;
    int rc = mpshm__object_check(MPSHM_FILE_DESCRIPTOR, object, 0);

    if (rc == 0 && fstat(object, &st) < 0)
        rc = -errno;
    if (rc == 0 && !mpshm__channel_has_size((uint64_t)st.st_size))
        rc = -EPROTO;
    if (rc < 0)
        return rc;
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, object, 0);
    if (map == MAP_FAILED)
        return -errno;
    const struct mpshm__channel *header = map;
    const char *data = (const char *)map + MPSHM__CHANNEL_HEADER;
    uint64_t rings = ((uint64_t)st.st_size - MPSHM__CHANNEL_HEADER) / MPSHM__RING_BYTES;
    if (header->magic != MPSHM__CHANNEL_MAGIC)
        rings = 0;
    for (uint64_t i = 0; i < rings; i++)
        out[i] = count(&header->ring[i], data + i * MPSHM__RING_BYTES);
    munmap(map, (size_t)st.st_size);
    return rings ? (int)rings : -EPROTO;
}
