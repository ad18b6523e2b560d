/* The clock by which deadlines are kept. */
#ifndef MPSHM_CLOCK_H
#define MPSHM_CLOCK_H

#include <stdint.h>

/* Nanoseconds on the monotonic clock. */
uint64_t mpshm__now_ns(void);
/* The same clock to the last tick of the kernel, a few milliseconds ago at most. It never needs a
 * system call. */
uint64_t mpshm__coarse_ns(void);
/* The same in ticks of a tenth of a second, for deadlines that travel in 32 bits: 13 years. */
enum { MPSHM__TICK_NS = 100000000 };
uint32_t mpshm__tick(void);
/* The time at which a timeout ends. A timeout of 2^63 ns or more, or a negative one of a signed
 * type, has no end. */
enum { MPSHM__FOREVER = 0 };
uint64_t mpshm__deadline(uint64_t timeout_ns);
/* Nanoseconds until `deadline`, at most `most`; 0 when it has passed. */
uint64_t mpshm__remaining(uint64_t deadline, uint64_t most);
/* Sleep, at most until a signal arrives. */
void mpshm__sleep_ms(long ms);

#endif
