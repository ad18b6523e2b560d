/* The monotonic clock. */
#define _GNU_SOURCE
#include <time.h>

#include "base/clock.h"

static uint64_t read_clock(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t mpshm__now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t mpshm__coarse_ns(void)
{
    return read_clock(CLOCK_MONOTONIC_COARSE);
}

uint32_t mpshm__tick(void)
{
    return (uint32_t)(mpshm__coarse_ns() / MPSHM__TICK_NS);
}

uint64_t mpshm__deadline(uint64_t timeout_ns)
{
    return timeout_ns >> 63 ? MPSHM__FOREVER : mpshm__now_ns() + timeout_ns;
}

uint64_t mpshm__remaining(uint64_t deadline, uint64_t most)
{
    if (deadline == MPSHM__FOREVER)
        return most;
    uint64_t now = mpshm__now_ns();
    if (now >= deadline)
        return 0;
    return deadline - now < most ? deadline - now : most;
}

void mpshm__sleep_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}
