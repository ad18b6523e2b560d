/* The C functions of mp-core, as mp_core.h lists them. */
#include "native.h"

mp_core_api mp_core;

int mp_load_core(void)
{
    return mp_copy_table(&mp_core, "mp_cuda", "mp-cuda");
}
