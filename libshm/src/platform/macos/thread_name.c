/* The name of the calling thread on macOS. */
#include <pthread.h>

#include "mpshm.h"
#include "platform/platform.h"

int mpshm__name_thread(const char *name)
{
    return -pthread_setname_np(name);
}

int mpshm_get_thread_name(char *name)
{
    return -pthread_getname_np(pthread_self(), name, MPSHM_THREAD_NAME_SIZE);
}
