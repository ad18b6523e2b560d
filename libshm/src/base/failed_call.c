/* The system call that has failed last in this thread. An error number says what went wrong and not
 * where: a sandbox that refuses one of twenty calls needs the name. */
#include <errno.h>

#include "base/failed_call.h"
#include "mpshm.h"

static _Thread_local const char *name;
static _Thread_local int number;

int mpshm__failed(const char *call)
{
    name = call;
    number = errno;
    return -number;
}

const char *mpshm_failed_call(int error)
{
    return name != NULL && number == error ? name : "";
}
