/* Adaptive spinning, on another processor or in turns on one.
 *
 * Note [When to spin]
 *   A sleep and its wake-up cost some 50 us, so a short spin pays if the answer comes sooner. A
 *   wait spins for `ns`. Success doubles it up to the ceiling (MP_SPIN_US), a second failure in a
 *   row quarters it, down to nothing; one alone may be a process that has lost its processor. Then
 *   a wait tries the ceiling again after 2 waits, after 4 more, and so on up to 64: on a busy
 *   machine, whose peers are not running, nearly all waits sleep at once, and two processes that
 *   begin to talk after a pause are both soon awake.
 *
 * Note [Two processes on one processor]
 *   The kernel wakes a process on the processor of its waker, so after a pause two processes that
 *   talk share one, even if another is idle. There a spin that only looks takes the time that the
 *   other process needs. So the spin gives the processor away (sched_yield) between two looks:
 *
 *       A    sends | yields                        | finds the answer
 *       B            finds the message, answers | yields
 *
 *   A round trip then takes two switches and no sleep, a fifth of the time. Both processes stay
 *   runnable, so the kernel's balancer sees two of them and moves one to an idle processor. The
 *   processor of the other process is looked at again in each round, and the spin goes on without
 *   system calls after such a move.
 *
 *   A third process that is runnable takes the processor at the first yield and keeps it for its
 *   time slice of some milliseconds, while a process that sleeps is woken before the slice ends. A
 *   yield that took longer than CONTENDED_NS is such a case. Then no wait of this process yields
 *   for 32 times as long, 250 ms at most, so trying costs a busy processor 3 % of its time.
 *
 *   A control group that grants the time of fewer than two processors counts a spin like work: two
 *   processes that talk would use it up, and then both would wait. There nothing spins. */
#define _GNU_SOURCE
#include <sched.h>

#include "base/clock.h"
#include "base/settings.h"
#include "base/spin.h"
#include "platform/linux/cgroup.h"

enum {
    CEILING_US = 50,
    LEAST_NS = 2000,
    MOST_SKIPPED = 64,
    CONTENDED_NS = 200000,
    PAUSE_FACTOR = 32,
    LONGEST_PAUSE_NS = 250000000
};

static _Atomic uint64_t no_yield_until; /* in this process */

void mpshm__relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

uint32_t mpshm__this_cpu(void)
{
    return (uint32_t)sched_getcpu() + 1;
}

int mpshm__quota_is_below_two(const char *root)
{
    enum { LEVELS = 16 };
    struct mpshm__group groups[LEVELS];
    int count = mpshm__groups_of(root, "self", "cpu", groups, 0, LEVELS);

    for (int i = 0; i < count; i++)
        if (mpshm__group_is_below_two_cpus(&groups[i]))
            return 1;
    return 0;
}

uint64_t mpshm__spin_ceiling(void)
{
    static _Atomic int64_t known = -1;
    int64_t ns = atomic_load_explicit(&known, memory_order_relaxed);

    if (ns < 0) {
        long us = mpshm__asked_spin_us();
        if (us < 0)
            us = CEILING_US;
        if (us > 0 && mpshm__quota_is_below_two(""))
            us = 0;
        ns = (int64_t)us * 1000;
        atomic_store_explicit(&known, ns, memory_order_relaxed);
    }
    return (uint64_t)ns;
}

static int has_one_cpu(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) == 1;
}

/* Whether the other process ran on this processor when it was last heard of. */
static int shares_cpu(const _Atomic uint32_t *known)
{
    uint32_t cpu = atomic_load_explicit(known, memory_order_relaxed);

    return cpu != 0 ? cpu == mpshm__this_cpu() : has_one_cpu();
}

uint64_t mpshm__spin_length(struct mpshm__spin *spin, const struct mpshm__awaited *awaited)
{
    if (spin->ns == 0) {
        uint32_t to_skip = spin->to_skip;
        if (to_skip > 0) {
            spin->to_skip = to_skip - 1;
            return 0;
        }
        uint32_t before = spin->skipped;
        spin->skipped = before < MOST_SKIPPED / 2 ? before * 2 + 2 : MOST_SKIPPED;
        spin->to_skip = spin->skipped;
        spin->ns = mpshm__spin_ceiling();
    }
    uint64_t pause = atomic_load_explicit(&no_yield_until, memory_order_relaxed);
    if (pause != 0 && shares_cpu(awaited->cpu)) {
        if (mpshm__now_ns() < pause)
            return 0;
        atomic_store_explicit(&no_yield_until, 0, memory_order_relaxed);
    }
    return spin->ns;
}

static int succeed(struct mpshm__spin *spin)
{
    uint64_t longer = spin->ns * 2, ceiling = mpshm__spin_ceiling();

    spin->ns = longer < ceiling ? longer : ceiling;
    if (spin->skipped != 0)
        spin->to_skip = spin->skipped = 0;
    spin->has_failed = 0;
    return 1;
}

/* Let others run on this processor. 0 when they have kept it. */
static int yield_in_turn(uint64_t *now)
{
    uint64_t before = *now;

    sched_yield();
    *now = mpshm__now_ns();
    uint64_t took = *now - before;
    if (took < CONTENDED_NS)
        return 1;
    uint64_t pause =
        took < LONGEST_PAUSE_NS / PAUSE_FACTOR ? took * PAUSE_FACTOR : LONGEST_PAUSE_NS;
    atomic_store_explicit(&no_yield_until, *now + pause, memory_order_relaxed);
    return 0;
}

int mpshm__spin(struct mpshm__spin *spin, const struct mpshm__awaited *awaited, uint64_t most)
{
    if (most == 0)
        return 0;
    uint64_t start = mpshm__now_ns(), now = start;
    int has_turn = 1;
    do {
        if (shares_cpu(awaited->cpu)) {
            has_turn = yield_in_turn(&now);
            if (awaited->has(awaited->of, awaited->value))
                return succeed(spin);
            continue;
        }
        for (int i = 0; i < 32; i++) {
            if (awaited->has(awaited->of, awaited->value))
                return succeed(spin);
            mpshm__relax();
        }
        now = mpshm__now_ns();
    } while (has_turn && now - start < most);
    if (!spin->has_failed) {
        spin->has_failed = 1;
        return 0;
    }
    uint64_t shorter = spin->ns / 4;
    spin->ns = shorter < LEAST_NS ? 0 : shorter;
    return 0;
}
