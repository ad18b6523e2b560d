/* Which shared blocks a forked child gets as private copies: arrays of Python objects.
 *
 * A child that stored its own addresses in such an array, or only dropped it, would corrupt it for
 * its parent. So before a fork the first few hundred words that are not zero are examined. Numbers
 * fail the first test at nearly every word. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "native.h"

/* Read 8 bytes that may not be mapped: the kernel reports that, a load would crash. */
static int peek(int memory, uintptr_t at, uintptr_t *word)
{
    return pread(memory, word, sizeof(*word), (off_t)at) == sizeof(*word);
}

static int looks_like_an_address(uintptr_t word)
{
    return word % sizeof(void *) == 0 && word >= 0x10000 && word < (uintptr_t)1 << 47;
}

/* An object has a type; the type is an object whose own type is `type` or a subclass of it. */
static int is_object(int memory, uintptr_t word)
{
    uintptr_t at = word, next;

    for (int step = 0; step < 3; step++) {
        if (!looks_like_an_address(at) || !peek(memory, at + offsetof(PyObject, ob_type), &next))
            return 0;
        if (step > 0 && next == (uintptr_t)&PyType_Type)
            return 1;
        at = next;
    }
    return 0;
}

int mp_holds_objects(const void *data, uint64_t nbytes)
{
    enum { WORDS = 512, STRETCH = 1 << 20, PAGE = 4096 };
    const char *base = data;
    int memory = -1, left = WORDS, found = 0;

    for (uint64_t from = 0; from < nbytes && left > 0 && !found; from += STRETCH) {
        unsigned char resident[STRETCH / PAGE];
        uint64_t bytes = nbytes - from < STRETCH ? nbytes - from : STRETCH;
        /* Reading a page that was never touched would allocate it. */
        if (mincore((void *)(base + from), bytes, resident) != 0)
            memset(resident, 1, sizeof(resident));
        for (uint64_t at = 0; at + sizeof(uintptr_t) <= bytes && left > 0 && !found;) {
            uintptr_t word;
            if (at % PAGE == 0 && !(resident[at / PAGE] & 1)) {
                at += PAGE;
                continue;
            }
            memcpy(&word, base + from + at, sizeof(word));
            at += sizeof(word);
            if (word == 0)
                continue;
            left--;
            if (!looks_like_an_address(word))
                continue;
            if (memory < 0)
                memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
            found = memory < 0 || is_object(memory, word);
        }
    }
    if (memory >= 0)
        close(memory);
    return found;
}
