/* The name of the calling thread, cut to the same 15 bytes on every platform. */
#define _GNU_SOURCE
#include <string.h>

#include "mpshm.h"
#include "platform/platform.h"

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
    return mpshm__name_thread(cut);
}
