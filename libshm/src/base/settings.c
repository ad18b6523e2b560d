/* Settings in the environment: every variable that libshm reads is read here.
 *
 * Each is read when its value is needed: a program may set it before its first use of shared
 * memory. The Python packages read theirs in `mp_core/system/settings.py`. */
#include <stdlib.h>
#include <strings.h>

#include "base/settings.h"
#include "mpshm.h"

enum { LONGEST_SPIN_US = 1000000 };

static const char *text_of(const char *variable)
{
    const char *text = getenv(variable);

    return text != NULL ? text : "";
}

const char *mpshm__runtime_root(void)
{
    const char *folder = text_of("MPSHM_RUNTIME_DIR");

    return *folder ? folder : "/tmp";
}

uint64_t mpshm__asked_segment_bytes(void)
{
    return strtoull(text_of("MPSHM_SEGMENT_BYTES"), NULL, 10);
}

int mpshm__asked_cache_bytes(uint64_t *nbytes)
{
    const char *text = text_of("MP_CACHE_BYTES");

    return *text && mpshm_parse_bytes(text, nbytes) == 0;
}

long mpshm__asked_spin_us(void)
{
    const char *text = text_of("MP_SPIN_US");
    long us = *text ? strtol(text, NULL, 10) : -1;

    return us <= LONGEST_SPIN_US ? us : -1;
}

int mpshm__dump_is_asked(void)
{
    static const char *const on[] = {"1", "true", "yes", "on"};

    for (size_t i = 0; i < sizeof(on) / sizeof(on[0]); i++)
        if (strcasecmp(text_of("MPSHM_DUMP"), on[i]) == 0)
            return 1;
    return 0;
}
