/* The clock by which deadlines are kept. */
#ifndef MPSHM_CLOCK_H
#define MPSHM_CLOCK_H

#include <stdint.h>

/* Nanoseconds on the monotonic clock. */
uint64_t mpshm__now_ns(void);
/* Sleep, at most until a signal arrives. */
void mpshm__sleep_ms(long ms);

#endif
