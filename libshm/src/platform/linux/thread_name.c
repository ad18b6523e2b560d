/* The name of the calling thread: 15 bytes, of which the kernel's tools show all. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/prctl.h>

#include "mpshm.h"

int mpshm_set_thread_name(const char *name)
{
    char cut[MPSHM_THREAD_NAME_SIZE] = {0};
    size_t len = strnlen(name, sizeof(cut));

    if (len == sizeof(cut)) {
        /* The byte at `len` is the first that does not fit. If it is a continuation byte
         * (10xxxxxx), the cut is inside a character, and the whole character is dropped. */
        len = sizeof(cut) - 1;
        while (len > 0 && ((unsigned char)name[len] & 0xC0) == 0x80)
            len--;
    }
    memcpy(cut, name, len);
    return prctl(PR_SET_NAME, cut, 0, 0, 0) < 0 ? -errno : 0;
}

int mpshm_get_thread_name(char *name)
{
    return prctl(PR_GET_NAME, name, 0, 0, 0) < 0 ? -errno : 0;
}
