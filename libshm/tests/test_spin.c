/* Adaptive spinning: when a wait spins, and two processes that share one processor. */
#define _GNU_SOURCE
#include <sched.h>

#include "base/spin.h"
#include "channel.h"

enum { FOREVER = -1 };

static int comes_at(void *looks, uint64_t at)
{
    return ++*(uint64_t *)looks >= at;
}

static uint64_t looks; /* of the last wait */

/* Spin until the `at`-th look; 0 when the wait does not spin or looks in vain. */
static int waits(struct mpshm__spin *spin, const _Atomic uint32_t *cpu, uint64_t at)
{
    looks = 0;
    struct mpshm__awaited awaited = {.has = comes_at, .of = &looks, .value = at, .cpu = cpu};

    return mpshm__spin(spin, &awaited, mpshm__spin_length(spin, &awaited));
}

static int spins(struct mpshm__spin *spin, const _Atomic uint32_t *cpu)
{
    struct mpshm__awaited awaited = {.has = comes_at, .of = NULL, .cpu = cpu};

    return mpshm__spin_length(spin, &awaited) > 0;
}

static void a_wait_finds_what_comes_during_the_spin(const _Atomic uint32_t *cpu)
{
    struct mpshm__spin spin = {0};

    /* Some waits do not spin, also because another process has kept the processor. */
    while (!waits(&spin, cpu, 3))
        ;
}

static void spins_that_fail_become_seldom(const _Atomic uint32_t *cpu)
{
    int spun = 0;

    /* Another process that has kept the processor stops all spins for a while. */
    while (spun == 0) {
        struct mpshm__spin spin = {0};
        for (int i = 0; i < 640; i++) {
            CHECK_EQ(waits(&spin, cpu, UINT64_MAX), 0);
            spun += looks > 0;
        }
    }
    CHECK(spun <= 640 / 64 * 4 + 20);
}

static void pin_to_one_processor(void)
{
    cpu_set_t all, one;

    CHECK_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
}

static void two_processes_on_one_processor_answer_each_other(void)
{
    enum { ROUNDS = 2000 };
    struct line there = line_open(0), back = line_open(0);
    pid_t pid = fork();

    if (pid == 0) {
        for (int i = 0; i < ROUNDS; i++)
            CHECK_EQ(send_number(&back, (int)receive_number(&there, FOREVER), 100, FOREVER), 0);
        _exit(0);
    }
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_EQ(send_number(&there, i, 100, FOREVER), 0);
        CHECK_EQ(receive_number(&back, FOREVER), i);
    }
    CHECK_EQ(reap(pid), 0);
    line_close(&there);
    line_close(&back);
}

static void with_a_ceiling_of_0_nothing_spins(void)
{
    _Atomic uint32_t elsewhere = UINT32_MAX;
    struct mpshm__spin spin = {0};
    pid_t pid = fork();

    if (pid == 0) {
        /* The ceiling is read once, in a process that has not waited. */
        setenv("MP_SPIN_US", "0", 1);
        for (int i = 0; i < 200; i++)
            CHECK_EQ(spins(&spin, &elsewhere), 0);
        _exit(0);
    }
    CHECK_EQ(reap(pid), 0);
}

int main(void)
{
    _Atomic uint32_t unknown = 0, elsewhere = UINT32_MAX, here;

    unsetenv("MP_SPIN_US");
    with_a_ceiling_of_0_nothing_spins();
    pin_to_one_processor();
    here = mpshm__this_cpu();
    a_wait_finds_what_comes_during_the_spin(&elsewhere);
    a_wait_finds_what_comes_during_the_spin(&here);
    a_wait_finds_what_comes_during_the_spin(&unknown);
    spins_that_fail_become_seldom(&elsewhere);
    spins_that_fail_become_seldom(&here);
    two_processes_on_one_processor_answer_each_other();
    return 0;
}
