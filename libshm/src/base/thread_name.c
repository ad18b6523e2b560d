/* The name of the calling thread: the same 15 bytes on every platform. */
#define _GNU_SOURCE
#include <string.h>

#include "mpshm.h"
#include "platform/platform.h"

int mpshm_set_thread_name(const char *name)
{
    char cut[MPSHM_THREAD_NAME_SIZE] = {0};
    size_t len = strnlen(name, sizeof(cut));

    if (len == sizeof(cut)) {
        /* The byte at `len` is the first that does not fit. A continuation byte (10xxxxxx) there
         * means that a character straddles the cut: it goes as a whole. */
        len = sizeof(cut) - 1;
        while (len > 0 && ((unsigned char)name[len] & 0xC0) == 0x80)
            len--;
    }
    memcpy(cut, name, len);
    return mpshm__name_thread(cut);
}
