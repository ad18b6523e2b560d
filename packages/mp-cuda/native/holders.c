/* Which memory of which device this process holds, for others to read:
 * `mp_cuda/sharing/holders.py`.
 *
 * The numbers are in a memfd, which a reader finds among the descriptors of the process in /proc,
 * as it finds channels. It is made when the first device memory is sent or received. Memory that is
 * open only for the next message is not held. */
#define _GNU_SOURCE
#include "native.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    unsigned char uuid[16];
    uint64_t own_bytes, own_count; /* allocations of this process that others have or may receive */
    uint64_t held_bytes, held_count; /* those of other processes that arrays here use */
} holder_row;

/* As holders.py reads it. */
typedef struct {
    char magic[8];
    uint32_t pid, rows;
    holder_row row[MP_DEVICES];
} holder_table;

static holder_table *held;
static int descriptor = -1, has_failed;

static void begin(void)
{
    descriptor = memfd_create("mp-cuda-holders", MFD_CLOEXEC);
    void *at = MAP_FAILED;

    if (descriptor >= 0 && ftruncate(descriptor, sizeof(*held)) == 0)
        at = mmap(NULL, sizeof(*held), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (at == MAP_FAILED) { /* it is not listed, and works */
        has_failed = 1;
        if (descriptor >= 0)
            close(descriptor);
        descriptor = -1;
        return;
    }
    held = at;
    memcpy(held->magic, "mpcuda1", sizeof(held->magic));
    held->pid = (uint32_t)getpid();
    held->rows = MP_DEVICES;
}

void mp_count(int device, PyObject *key, int is_own, int sign)
{
    mp_key_head head;

    memcpy(&head, PyBytes_AsString(key), sizeof(head));
    if (held == NULL && !has_failed)
        begin();
    if (held == NULL || device < 0 || device >= MP_DEVICES)
        return;
    holder_row *row = &held->row[device];
    memcpy(row->uuid, head.uuid, sizeof(row->uuid));
    __atomic_fetch_add(is_own ? &row->own_bytes : &row->held_bytes,
                       sign > 0 ? head.nbytes : -head.nbytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(is_own ? &row->own_count : &row->held_count, (uint64_t)sign,
                       __ATOMIC_RELAXED);
}

void mp_forget_holders(void)
{
    if (held != NULL) {
        munmap(held, sizeof(*held));
        close(descriptor);
    }
    held = NULL;
    descriptor = -1;
}
