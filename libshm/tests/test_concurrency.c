/* Processes with several threads allocate, fill, send, receive, verify every byte and release,
 * while some of them, and the manager, are killed.
 *
 * All share one pipe of messages. A message is shorter than PIPE_BUF, so it is written and read as
 * a whole or not at all, and only one process reads it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "memory.h"

enum {
    PROCESSES = 4,
    THREADS = 3,
    ROUND_MS = 2500,
    KILL_EVERY_MS = 60,
    INHERITED = 200000, /* bytes of the block that every worker has from its parent */
};

struct message {
    unsigned char handle[MPSHM_HANDLE_SIZE];
    uint64_t seed;
    uint64_t nbytes;
};

/* In an ordinary shared mapping that all of them inherit from their parent. */
static struct {
    _Atomic int stop, manager_is_killed;
    _Atomic long sent, verified, lost;
} *common;

/* A worker ends by _exit, so errors of the thread sanitizer must end it before. */
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
    return "halt_on_error=1";
}

static int mail[2];
static mpshm_block inherited;

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* ---- bytes that tell which block they belong to ---- */

static void fill(void *data, uint64_t nbytes, uint64_t seed)
{
    unsigned char *at = data;

    for (uint64_t i = 0; i < nbytes; i += 8) {
        uint64_t word = (seed ^ i) * 0x9e3779b97f4a7c15u;
        memcpy(at + i, &word, nbytes - i < 8 ? nbytes - i : 8);
    }
}

static void verify(const void *data, uint64_t nbytes, uint64_t seed)
{
    const unsigned char *at = data;

    for (uint64_t i = 0; i < nbytes; i += 8) {
        uint64_t word = (seed ^ i) * 0x9e3779b97f4a7c15u;
        CHECK_EQ(memcmp(at + i, &word, nbytes - i < 8 ? nbytes - i : 8), 0);
    }
}

/* ---- threads ---- */

/* Mostly small blocks, which are reused fastest; sometimes one of a segment's size. */
static uint64_t some_size(uint64_t *random)
{
    static const uint64_t UP_TO[] = {64, 64, 1000, 5000, 40000, 40000, 300000, 2 << 20};

    return next(random) % UP_TO[next(random) % 8] + (next(random) % 50 != 0);
}

/* When a manager and an owner are killed together, messages whose memory no process had attached
 * are lost. */
static int may_be_lost(int rc)
{
    return atomic_load(&common->manager_is_killed) && (rc == -ESTALE || rc == -ENOENT);
}

/* Send the block and post its handle. When the pipe is full, return 0 and receive it here. */
static int post(const mpshm_block *block, uint64_t seed)
{
    struct message m = {.seed = seed, .nbytes = block->nbytes};
    mpshm_block got;

    CHECK_EQ(mpshm_block_send(block, 0, m.handle), 0);
    if (write(mail[1], &m, sizeof(m)) == sizeof(m)) {
        atomic_fetch_add(&common->sent, 1);
        return 1;
    }
    CHECK_EQ(errno, EAGAIN);
    CHECK_EQ(mpshm_block_receive(m.handle, sizeof(m.handle), 0, &got), 0);
    CHECK(got.data == block->data);
    mpshm_block_release(&got);
    return 0;
}

static void produce(uint64_t *random, int strategy)
{
    uint64_t seed = next(random), nbytes = some_size(random);
    mpshm_block block;

    CHECK_EQ(mpshm_block_allocate(strategy, nbytes, next(random) % 4 == 0, &block), 0);
    fill(block.data, nbytes, seed);
    for (uint64_t n = next(random) % 3; n > 0; n--)
        post(&block, seed);
    CHECK(mpshm_block_others(&block) >= 0);
    verify(block.data, nbytes, seed);
    mpshm_block_release(&block);
}

/* Returns 0 when there is no message. */
static int consume(uint64_t *random)
{
    struct message m;
    mpshm_block block, again;
    long n = read(mail[0], &m, sizeof(m));

    if (n < 0 && errno == EAGAIN)
        return 0;
    CHECK_EQ(n, sizeof(m));
    int rc = mpshm_block_receive(m.handle, sizeof(m.handle), 0, &block);
    if (may_be_lost(rc)) {
        atomic_fetch_add(&common->lost, 1);
        return 1;
    }
    CHECK_EQ(rc, 0);
    CHECK_EQ(block.nbytes, m.nbytes);
    verify(block.data, block.nbytes, m.seed);
    CHECK_EQ(mpshm_block_receive(m.handle, sizeof(m.handle), 0, &again), -ESTALE);
    if (next(random) % 4 == 0)
        post(&block, m.seed); /* and send it to another process */
    mpshm_block_release(&block);
    atomic_fetch_add(&common->verified, 1);
    return 1;
}

struct task {
    int strategy;
    uint64_t seed;
};

static void *work(void *arg)
{
    struct task *task = arg;
    uint64_t random = task->seed * 2 + 1;

    while (!atomic_load(&common->stop)) {
        if (next(&random) % 2)
            produce(&random, task->strategy);
        else
            consume(&random);
        if (next(&random) % 1000 == 0)
            mpshm_empty_cache();
    }
    return NULL;
}

/* ---- processes ---- */

static pid_t start_worker(int strategy, uint64_t seed)
{
    pid_t parent = getpid(), pid = forked();

    if (pid == 0) {
        mpshm_set_pdeathsig(SIGKILL, parent); /* when a check fails there */
        pthread_t threads[THREADS];
        struct task tasks[THREADS];
        for (int i = 0; i < THREADS; i++) {
            tasks[i] = (struct task){strategy, seed * THREADS + (uint64_t)i};
            CHECK_EQ(pthread_create(&threads[i], NULL, work, &tasks[i]), 0);
        }
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        verify(inherited.data, INHERITED, 1);
        _exit(0);
    }
    return pid;
}

static void pause_ms(int ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

/* Kill a worker, or the manager, at a random moment. */
static void kill_one(pid_t *workers, int strategy, uint64_t *random)
{
    int k = (int)(next(random) % PROCESSES);

    if (atomic_load(&common->manager_is_killed) && next(random) % 2) {
        pid_t manager = manager_pid();
        if (manager > 0)
            kill(manager, SIGKILL);
        return;
    }
    CHECK_EQ(kill(workers[k], SIGKILL), 0);
    CHECK_EQ(reap(workers[k]), -SIGKILL);
    workers[k] = start_worker(strategy, next(random));
}

/* After a manager was killed, deaths are noticed when a process needs the next one: a fork does. */
static int want_a_manager(void)
{
    pid_t pid = forked();

    if (pid == 0)
        _exit(0);
    CHECK_EQ(reap(pid), 0);
    return 0;
}

static void all_workers_at_once(int strategy, int kills_manager)
{
    uint64_t random = 88172645463325252u, until;
    pid_t workers[PROCESSES];

    CHECK(pipe2(mail, O_NONBLOCK | O_CLOEXEC) == 0);
    atomic_store(&common->stop, 0);
    atomic_store(&common->manager_is_killed, kills_manager);
    atomic_store(&common->verified, 0);
    CHECK_EQ(mpshm_block_allocate(strategy, INHERITED, 0, &inherited), 0);
    fill(inherited.data, INHERITED, 1);
    for (int i = 0; i < PROCESSES; i++)
        workers[i] = start_worker(strategy, (uint64_t)i + 1);
    for (until = now_ms() + ROUND_MS; now_ms() < until;) {
        pause_ms((int)(next(&random) % (2 * KILL_EVERY_MS)));
        kill_one(workers, strategy, &random);
    }
    atomic_store(&common->stop, 1);
    for (int i = 0; i < PROCESSES; i++)
        CHECK_EQ(reap(workers[i]), 0);
    /* The senders of all that is still in the pipe are dead. */
    while (consume(&random))
        ;
    verify(inherited.data, INHERITED, 1);
    CHECK(atomic_load(&common->verified) > 100);
    EVENTUALLY(mpshm_block_others(&inherited) == 0 || (kills_manager && want_a_manager()));
    mpshm_block_release(&inherited);
    CHECK_EQ(live_bytes(), 0);
    close(mail[0]), close(mail[1]);
}

int main(void)
{
    set_up();
    /* For the managers: the leak sanitizer runs in a process of its own, which looks like a
     * manager, is killed like one, and would be waited for without end. */
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    common = mmap(NULL, sizeof(*common), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(common != MAP_FAILED);
    for (int i = 0; i < 4; i++) {
        pid_t pid = fork(); /* each round is a session of its own */
        CHECK(pid >= 0);
        if (pid == 0) {
            all_workers_at_once(STRATEGIES[i % 2], i / 2);
            _exit(0);
        }
        CHECK_EQ(reap(pid), 0);
        /* If all were killed together with the manager, the last one to exit cleans up. */
        EVENTUALLY(entries_in(runtime_dir, "mpshm-") == 0);
        if (own_dev_shm)
            CHECK_EQ(entries_in("/dev/shm", "mpshm-"), 0);
        if (getenv("VERBOSE"))
            printf("  %ld sent, %ld verified, %ld lost with manager and owner\n",
                   atomic_load(&common->sent), atomic_load(&common->verified),
                   atomic_load(&common->lost));
    }
    CHECK_EQ(rmdir(runtime_dir), 0);
    return 0;
}
