/* The name of the calling thread on Linux. */
#define _GNU_SOURCE
#include <sys/prctl.h>

#include "mpshm.h"
#include "platform/platform.h"

int mpshm__name_thread(const char *name)
{
    return prctl(PR_SET_NAME, name, 0, 0, 0) < 0 ? -errno : 0;
}

int mpshm_get_thread_name(char *name)
{
    return prctl(PR_GET_NAME, name, 0, 0, 0) < 0 ? -errno : 0;
}
