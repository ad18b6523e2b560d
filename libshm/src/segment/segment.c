/* Segments: created, mapped once in each process, and unmapped. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/failed_call.h"
#include "base/settings.h"
#include "platform/platform.h"
#include "segment/address_range.h"
#include "segment/memory_object.h"
#include "segment/reserve.h"
#include "segment/segment.h"

enum {
    BYTES_PER_ENTRY =
        1024, /* bytes of data for each entry of the tables, so that small blocks fill both */
    LEAST_ENTRIES = 1024,
    DUMP_STEP = 1 << 24,
};

static const char MAGIC[8] = {'m', 'p', 's', 'h', 'm', 'A', 0, MPSHM__LAYOUT};

/* Aligned to the largest page of a supported machine, so that holes consist of whole pages. */
static uint64_t far_begin(uint64_t metadata_at, uint64_t capacity)
{
    return metadata_at + mpshm__pages(capacity * sizeof(struct mpshm__metadata));
}

static uint64_t sent_begin(uint64_t far_at, uint64_t capacity)
{
    return far_at + mpshm__pages(capacity * sizeof(struct mpshm__far));
}

static uint64_t data_begin(uint64_t sent_at, uint64_t capacity)
{
    uint64_t end = sent_at + capacity * sizeof(struct mpshm__sent);

    return (end + 0xffff) & ~(uint64_t)0xffff;
}

static void *anonymous(uint64_t nbytes)
{
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static int map(int fd, uint64_t size, struct mpshm__segment **out)
{
    struct mpshm__segment *segment = calloc(1, sizeof(*segment));
    void *at;

    if (segment == NULL)
        return -ENOMEM;
    at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED) {
        int err = mpshm__failed("mmap");
        free(segment);
        return err;
    }
    /* A core dump touches every page that it includes, so a crash would use as much memory as
     * there is address space. */
    madvise(at, size, MADV_DONTDUMP);
    segment->header = at;
    segment->size = size;
    segment->fd = MPSHM__NO_FD;
    *out = segment;
    return 0;
}

static int set_pointers(struct mpshm__segment *segment)
{
    struct mpshm__segment_header *h = segment->header;
    char *base = (char *)h;

    segment->blocks = (void *)(base + h->blocks_at);
    segment->metadata = (void *)(base + h->metadata_at);
    segment->far = (void *)(base + h->far_at);
    segment->sent = (void *)(base + h->sent_at);
    segment->data = base + h->data_at;
    segment->nonce[0] = h->nonce[0];
    segment->nonce[1] = h->nonce[1];
    segment->strategy = (int)h->strategy;
    segment->capacity = h->capacity;
    segment->room = segment->size - h->data_at;
    segment->local_refs = anonymous(segment->capacity * sizeof(uint32_t));
    if (segment->local_refs == NULL)
        return -ENOMEM;
    segment->dump = mpshm__dump_is_asked();
    mpshm__segment_dump(segment);
    return 0;
}

/* With MPSHM_DUMP=1 core dumps include the allocated data. The range grows in steps, since each
 * madvise may split a mapping. */
void mpshm__segment_dump(struct mpshm__segment *segment)
{
    uint64_t bumped, end;

    if (!segment->dump)
        return;
    bumped = atomic_load(&segment->header->bumped);
    if (bumped <= segment->dumped)
        return;
    end = (bumped + DUMP_STEP - 1) / DUMP_STEP * DUMP_STEP;
    if (end > segment->room)
        end = segment->room;
    if (madvise(segment->data, end, MADV_DODUMP) == 0) /* a step, or the room: whole pages */
        segment->dumped = end;
}

int mpshm__segment_become_owner(struct mpshm__segment *segment)
{
    if (segment->next == NULL)
        segment->next = anonymous(segment->capacity * sizeof(uint32_t));
    if (segment->committed == NULL)
        segment->committed = anonymous(segment->capacity * sizeof(uint32_t));
    if (segment->writes == NULL)
        segment->writes = anonymous(segment->capacity);
    if (segment->next == NULL || segment->committed == NULL || segment->writes == NULL)
        return -ENOMEM;
    memset(segment->free_dirty, 0, sizeof(segment->free_dirty));
    memset(segment->free_zero, 0, sizeof(segment->free_zero));
    segment->slabs = 0;
    segment->own = 1;
    return 0;
}

void mpshm__segment_unmap(struct mpshm__segment *segment)
{
    if (segment == NULL)
        return;
    mpshm__range_unregister(segment);
    if (segment->local_refs)
        munmap(segment->local_refs, segment->capacity * sizeof(uint32_t));
    if (segment->next)
        munmap(segment->next, segment->capacity * sizeof(uint32_t));
    if (segment->committed)
        munmap(segment->committed, segment->capacity * sizeof(uint32_t));
    if (segment->writes)
        munmap(segment->writes, segment->capacity);
    free(segment->slab_list);
    munmap(segment->header, segment->size);
    mpshm__fd_close(&segment->fd);
    free(segment);
}

/* The layout of a segment: its data, and an entry for each block that fits into it. A segment
 * that is created for one block larger than itself has only that block. */
static void measure(struct mpshm__segment_header *plan, uint64_t size, uint64_t need)
{
    uint64_t least = mpshm__pages(need < MPSHM__SLAB_BYTES ? MPSHM__SLAB_BYTES : need);

    plan->capacity = LEAST_ENTRIES;
    if (size > least && size / BYTES_PER_ENTRY > LEAST_ENTRIES)
        plan->capacity = size / BYTES_PER_ENTRY;
    plan->blocks_at = MPSHM__PAGE;
    plan->metadata_at =
        plan->blocks_at + mpshm__pages(plan->capacity * sizeof(struct mpshm__block));
    plan->far_at = far_begin(plan->metadata_at, plan->capacity);
    plan->sent_at = sent_begin(plan->far_at, plan->capacity);
    plan->data_at = data_begin(plan->sent_at, plan->capacity);
    plan->size = plan->data_at + mpshm__pages(size > least ? size : least);
}

int mpshm__segment_create(int strategy, uint64_t size, uint64_t need, const unsigned char *session,
                          struct mpshm__slot *maker, struct mpshm__segment **out)
{
    struct mpshm__segment_header plan = {0};
    struct mpshm__segment *segment = NULL;
    int fd = -1, err;

    if (need > MPSHM__LARGEST)
        return -ENOMEM;
    memcpy(plan.magic, MAGIC, sizeof(MAGIC));
    memcpy(plan.session, session, MPSHM_ID_SIZE);
    if (MPSHM__RETRY(getrandom(plan.nonce, sizeof(plan.nonce), 0)) != sizeof(plan.nonce))
        return -EIO;
    plan.nonce[0] |= 1; /* 0 stands for no segment */
    plan.strategy = (uint32_t)strategy;
    if (maker != NULL && strategy == MPSHM_FILE_SYSTEM) {
        /* If this process dies before it registers the segment, the reaper finds the name here. */
        atomic_store(&maker->making[1], plan.nonce[1]);
        atomic_store(&maker->making[0], plan.nonce[0]);
    }

    for (;; size /= 2) {
        measure(&plan, size, need);
        err = mpshm__file_size_allowed(plan.size);
        fd = err < 0 ? err : mpshm__object_create(strategy, plan.nonce, plan.size);
        if (fd == -EFBIG && size > need && size > MPSHM__SEGMENT_LEAST)
            continue; /* ulimit -f */
        if (fd < 0)
            return fd;
        err = map(fd, plan.size, &segment);
        if (err == 0)
            break;
        close(fd);
        if (strategy == MPSHM_FILE_SYSTEM)
            mpshm__object_unlink(plan.nonce);
        /* Address space may be limited too (ulimit -v), or locked memory (mlockall, with
         * EAGAIN). A smaller segment may fit. */
        if ((err != -ENOMEM && err != -EAGAIN) || size <= need || size <= MPSHM__SEGMENT_LEAST)
            return err == -EAGAIN ? -ENOMEM : err;
    }
    mpshm__fd_set(&segment->fd, fd);
    segment->must_reserve = mpshm__object_must_reserve(strategy);
    fd = mpshm__fd_get(&segment->fd);
    if (segment->must_reserve && (err = mpshm__reserve(fd, 0, MPSHM__PAGE)) < 0)
        goto fail;
    memcpy(segment->header, &plan, sizeof(plan));
    err = set_pointers(segment);
    if (err == 0)
        err = mpshm__segment_become_owner(segment);
    if (err < 0)
        goto fail;
    *out = segment;
    return 0;

fail:
    if (strategy == MPSHM_FILE_SYSTEM)
        mpshm__object_unlink(plan.nonce);
    mpshm__segment_unmap(segment);
    return err;
}

/* Check once every number that addresses are computed from. */
static int is_valid(const struct mpshm__segment_header *h, uint64_t size,
                    const struct mpshm__segment_entry *entry, const unsigned char *session)
{
    return memcmp(h->magic, MAGIC, sizeof(MAGIC)) == 0 &&
           memcmp(h->session, session, MPSHM_ID_SIZE) == 0 &&
           h->nonce[0] == atomic_load(&entry->nonce[0]) &&
           h->nonce[1] == atomic_load(&entry->nonce[1]) && h->size == size && h->capacity >= 1 &&
           h->capacity <= UINT32_MAX && h->blocks_at == MPSHM__PAGE &&
           h->metadata_at ==
               h->blocks_at + mpshm__pages(h->capacity * sizeof(struct mpshm__block)) &&
           h->far_at == far_begin(h->metadata_at, h->capacity) &&
           h->sent_at == sent_begin(h->far_at, h->capacity) &&
           h->data_at == data_begin(h->sent_at, h->capacity) && h->data_at < size;
}

int mpshm__segment_map(int fd, uint32_t index, const struct mpshm__segment_entry *entry,
                       const unsigned char *session, uint32_t user, struct mpshm__segment **out)
{
    struct mpshm__segment *segment;
    struct stat st;
    int err = mpshm__object_check((int)atomic_load(&entry->strategy), fd, user);

    if (err < 0)
        return err;
    if (fstat(fd, &st) < 0)
        return mpshm__failed("fstat");
    if (st.st_size < MPSHM__PAGE)
        return -EBADMSG;
    err = map(fd, (uint64_t)st.st_size, &segment);
    if (err < 0)
        return err;
    if (!is_valid(segment->header, (uint64_t)st.st_size, entry, session)) {
        munmap(segment->header, segment->size);
        free(segment);
        return -ESTALE;
    }
    err = set_pointers(segment);
    if (err < 0) {
        mpshm__segment_unmap(segment);
        return err;
    }
    segment->index = index;
    *out = segment;
    return 0;
}

static int read_all(int fd, void *data, uint64_t nbytes, uint64_t at)
{
    for (char *to = data; nbytes > 0;) {
        ssize_t n = MPSHM__RETRY(pread(fd, to, nbytes, (off_t)at));

        if (n <= 0)
            return n < 0 ? mpshm__failed("pread") : -EBADMSG;
        to += n;
        at += (uint64_t)n;
        nbytes -= (uint64_t)n;
    }
    return 0;
}

/* Read a block's entry; -ESTALE if it is not the one of a message with this generation and size. */
static int read_entry(int fd, const struct mpshm__segment_header *h, uint32_t i,
                      uint32_t generation, uint64_t nbytes, struct mpshm__block *block)
{
    int err = read_all(fd, block, sizeof(*block), h->blocks_at + i * sizeof(*block));

    if (err < 0)
        return err;
    return mpshm__is_live(atomic_load(&block->state), generation) &&
                   atomic_load(&block->nbytes) == nbytes
               ? 0
               : -ESTALE;
}

int mpshm__segment_read(int fd, const struct mpshm__segment_entry *entry,
                        const unsigned char *session, uint32_t user, uint32_t i,
                        uint32_t generation, void *data, uint64_t nbytes)
{
    struct mpshm__segment_header header;
    struct mpshm__block block;
    struct stat st;
    int err = mpshm__object_check((int)atomic_load(&entry->strategy), fd, user);

    if (err == 0 && fstat(fd, &st) < 0)
        err = mpshm__failed("fstat");
    if (err == 0)
        err = read_all(fd, &header, sizeof(header), 0);
    if (err < 0)
        return err;
    if (!is_valid(&header, (uint64_t)st.st_size, entry, session))
        return -ESTALE;
    if (i >= header.capacity)
        return -EBADMSG;
    err = read_entry(fd, &header, i, generation, nbytes, &block);
    if (err < 0)
        return err;
    uint64_t at = (uint64_t)atomic_load(&block.where) * 64, room = header.size - header.data_at;
    if (nbytes > room || at > room - nbytes)
        return -EBADMSG;
    err = read_all(fd, data, nbytes, header.data_at + at);
    /* A message that expired meanwhile kept nothing alive: the bytes may be another block's. */
    return err < 0 ? err : read_entry(fd, &header, i, generation, nbytes, &block);
}
