/* The C functions of mp-core: module.c, Note [Two tables]. */
#include "native.h"

mp_core_api mp_core;

int mp_load_core(void)
{
    return mp_copy_table(&mp_core, "mp_reductions", "mp-reductions");
}
