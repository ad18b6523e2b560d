/* Adaptive spinning: how long a wait looks for what it waits for before it sleeps. */
#ifndef MPSHM_SPIN_H
#define MPSHM_SPIN_H

#include <stdatomic.h>
#include <stdint.h>

/* How long the next wait of one kind spins. Zeroed at first; several threads may use it. */
struct mpshm__spin {
    _Atomic uint64_t ns;
    _Atomic uint32_t to_skip;    /* waits that do not spin before the next one that does, */
    _Atomic uint32_t skipped;    /* and how many there were at the last time */
    _Atomic uint32_t has_failed; /* the last one */
};

/* The object of a wait: has() is 1 when it is there. */
struct mpshm__awaited {
    int (*has)(void *of, uint64_t value);
    void *of;
    uint64_t value;
    /* The processor of the process that brings it, plus 1; 0: not known. */
    const _Atomic uint32_t *cpu;
};

/* Tell the processor that this is a spin. */
void mpshm__relax(void);

/* The processor that this process runs on, plus 1. */
uint32_t mpshm__this_cpu(void);

/* Say on which processor this process runs. */
static inline void mpshm__note_cpu(_Atomic uint32_t *cpu)
{
    uint32_t mine = mpshm__this_cpu();

    if (atomic_load_explicit(cpu, memory_order_relaxed) != mine)
        atomic_store_explicit(cpu, mine, memory_order_relaxed);
}

/* Whether the control groups grant this process the time of fewer than two processors. `root` is
 * put before every path; it is "" except in tests. */
int mpshm__quota_is_below_two(const char *root);

/* For how many nanoseconds a wait spins at most. The first call reads files. */
uint64_t mpshm__spin_ceiling(void);

/* Decide whether this wait spins: for how many nanoseconds, or 0. */
uint64_t mpshm__spin_length(struct mpshm__spin *spin, const struct mpshm__awaited *awaited);
/* Spin for at most that long, which mpshm__spin_length() has returned, or less: 1 when it is there.
 */
int mpshm__spin(struct mpshm__spin *spin, const struct mpshm__awaited *awaited, uint64_t most);

#endif
