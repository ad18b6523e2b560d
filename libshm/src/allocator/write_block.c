/* The bytes of a message, written into a block.
 *
 * Note [The first write of new pages]
 *   memcpy into pages that nobody has touched takes a fault for each page, in which the kernel
 *   clears it. pwrite to the segment's file fills pages without clearing them and takes no fault,
 *   but leaves them out of this process's page table; most senders never look at them again. 16 MiB
 *   on the machine of docs/performance.md, ms:
 *
 *       first write, second, third      memcpy   14.1   1.9   1.8
 *                                       pwrite    6.9   4.4   3.6
 *       pwrite, see below, memcpy                 6.9   4.5   1.8
 *
 *   So the first write goes through the descriptor, and the second maps the pages that are there a
 *   piece at a time (MADV_POPULATE_READ) and copies the piece while it is in a cache.
 *
 *       UNTOUCHED ----- pwrite ----> UNMAPPED ----- populate, memcpy ----> MAPPED
 *           \__ given out again after its user has written in place ________^
 *
 *   A wrong state costs time and nothing else: all ways write the same bytes. Where pwrite fails (a
 *   sandbox, a file-size limit that was lowered, no descriptor) memcpy writes the rest. A process
 *   that is killed in between leaves a block that it has not sent.
 *
 *   The descriptor is looked at just before its use (descriptor.c). */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "allocator/write_block.h"
#include "base/process_lock.h"
#include "segment/reserve.h"

enum {
    LEAST = 1 << 16,     /* bytes, below which the calls cost what they save */
    AT_A_TIME = 1 << 20, /* for one pwrite, which locks the file */
    PIECE = 1 << 17,     /* a part of a processor's cache */
    POPULATE_READ = 22   /* MADV_POPULATE_READ, since Linux 5.14 */
};

void mpshm__note_pages(struct mpshm__segment *segment, uint32_t i, int are_new)
{
    uint8_t *writes = &segment->writes[i];

    if (are_new)
        *writes = MPSHM__UNTOUCHED;
    else if (*writes == MPSHM__UNTOUCHED)
        *writes = MPSHM__MAPPED;
}

/* The segment's descriptor, or -1. */
static int descriptor_of(struct mpshm__segment *segment, uint64_t end)
{
    if (mpshm__file_size_allowed(end) < 0 || !mpshm__try_lock()) /* SIGXFSZ */
        return -1;
    int fd = mpshm__fd_get(&segment->fd);
    mpshm__unlock();
    return fd;
}

/* Returns how many bytes were written. */
static uint64_t write_unmapped(struct mpshm__segment *segment, uint64_t at, const char *from,
                               uint64_t nbytes)
{
    uint64_t done = 0;
    int fd = descriptor_of(segment, at + nbytes);

    while (fd >= 0 && done < nbytes) {
        uint64_t n = nbytes - done < AT_A_TIME ? nbytes - done : AT_A_TIME;
        ssize_t written = pwrite(fd, from + done, n, (off_t)(at + done));
        if (written <= 0)
            break;
        done += (uint64_t)written;
    }
    return done;
}

static void write_and_map(char *to, const char *from, uint64_t nbytes)
{
    int populates = 1;

    for (uint64_t done = 0; done < nbytes; done += PIECE) {
        uint64_t n = nbytes - done < PIECE ? nbytes - done : PIECE;
        populates = populates && madvise(to + done, mpshm__pages(n), POPULATE_READ) == 0;
        memcpy(to + done, from + done, n);
    }
}

void mpshm__write_block(struct mpshm__segment *segment, uint32_t i, char *to, const void *from,
                        uint64_t nbytes)
{
    uint64_t at = (uint64_t)(to - (char *)segment->header), done = 0;

    if (nbytes >= LEAST && segment->own) {
        uint8_t *writes = &segment->writes[i];
        if (*writes == MPSHM__UNTOUCHED) {
            *writes = MPSHM__UNMAPPED;
            done = write_unmapped(segment, at, from, nbytes);
        } else if (*writes == MPSHM__UNMAPPED) {
            *writes = MPSHM__MAPPED;
            write_and_map(to, from, nbytes);
            return;
        }
    }
    memcpy(to + done, (const char *)from + done, nbytes - done);
}
