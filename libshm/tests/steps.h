/* A child that runs one instruction at a time: a test looks at it, stops it or kills it after each.
 *
 *     child    await_steps()  -->  stopped                        runs on, one by one
 *     parent   begin_steps(pid)     waits for that      stepped(pid, count)
 */
#ifndef STEPS_H
#define STEPS_H

#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>

#include "check.h"

/* In the child, before what is stepped. */
__attribute__((unused)) static void await_steps(void)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
        _exit(77);
    raise(SIGSTOP);
}

__attribute__((unused)) static void begin_steps(pid_t pid)
{
    int status;

    CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        SKIP("ptrace is not allowed here");
    CHECK(WIFSTOPPED(status));
}

/* Run one instruction: 0 when the child has ended with it, well. */
__attribute__((unused)) static int step(pid_t pid)
{
    int status;

    CHECK_EQ(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (WIFSTOPPED(status))
        return 1;
    CHECK_EQ(status, 0);
    return 0;
}

/* Keep this process and the child on one processor, where a step takes half the time: returns where
 * they may run otherwise. */
__attribute__((unused)) static cpu_set_t together(pid_t pid)
{
    cpu_set_t all, here;

    CHECK_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    sched_setaffinity(0, sizeof(here), &here);
    sched_setaffinity(pid, sizeof(here), &here);
    return all;
}

__attribute__((unused)) static void apart(pid_t pid, cpu_set_t all)
{
    sched_setaffinity(0, sizeof(all), &all);
    sched_setaffinity(pid, sizeof(all), &all); /* fails when it has ended */
}

/* Run so many instructions: 0 when the child has ended before. */
__attribute__((unused)) static int stepped(pid_t pid, long count)
{
    cpu_set_t all = together(pid);
    int lives = 1;

    while (lives && count-- > 0)
        lives = step(pid);
    apart(pid, all);
    return lives;
}

#endif
