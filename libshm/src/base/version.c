/* The version of the library. A test compares it with every pyproject.toml. */
#include "mpshm.h"

#define MPSHM_VERSION "0.1.0"

const char *mpshm_version(void)
{
    return MPSHM_VERSION;
}
