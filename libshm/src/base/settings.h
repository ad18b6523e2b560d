/* Settings in the environment. */
#ifndef MPSHM_BASE_SETTINGS_H
#define MPSHM_BASE_SETTINGS_H

#include <stdint.h>

/* The folder of runtime folders: MPSHM_RUNTIME_DIR, or /tmp. */
const char *mpshm__runtime_root(void);

/* MPSHM_SEGMENT_BYTES: the size of each segment, for tests; 0 if it is not set. */
uint64_t mpshm__asked_segment_bytes(void);

/* MP_CACHE_BYTES: 1 and the limit, or 0 if there is none that can be read; mp_core has told the
 * user of a wrong one. */
int mpshm__asked_cache_bytes(uint64_t *nbytes);

/* MP_SPIN_US: for how many microseconds a reader spins at most; -1 if it is not set, or wrong. */
long mpshm__asked_spin_us(void);

/* MPSHM_DUMP: whether core dumps include shared memory. */
int mpshm__dump_is_asked(void);

#endif
