/* The name of the calling thread on Windows (since Windows 10, version 1607). */
#include <windows.h>

#include "mpshm.h"
#include "platform/platform.h"

int mpshm__name_thread(const char *name)
{
    WCHAR wide[MPSHM_THREAD_NAME_SIZE];

    if (MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, name, -1, wide,
                            MPSHM_THREAD_NAME_SIZE) == 0)
        return -EILSEQ;
    return FAILED(SetThreadDescription(GetCurrentThread(), wide)) ? -EINVAL : 0;
}

int mpshm_get_thread_name(char *name)
{
    PWSTR wide;
    int n;

    if (FAILED(GetThreadDescription(GetCurrentThread(), &wide)))
        return -EINVAL;
    n = WideCharToMultiByte(CP_UTF8, 0, wide, -1, name, MPSHM_THREAD_NAME_SIZE, NULL, NULL);
    LocalFree(wide);
    return n == 0 ? -ERANGE : 0; /* another library set it, to more than 15 bytes */
}
