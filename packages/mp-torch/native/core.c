/* The C functions of mp-core, as mp_core.h lists them. */
#include "native.h"

mp_core_api mp_core;

int mp_load_core(void)
{
    const mp_core_api *api = PyCapsule_Import(MP_CORE_API, 0);

    if (api == NULL)
        return -1;
    if (api->version != MP_CORE_API_VERSION) {
        PyErr_Format(PyExc_ImportError,
                     "mp_torch was compiled for version %d of mp_core's C functions and found "
                     "version %d: two installations are mixed; reinstall mp-core and mp-torch",
                     (int)MP_CORE_API_VERSION, api->version);
        return -1;
    }
    mp_core = *api;
    return 0;
}
