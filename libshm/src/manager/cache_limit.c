/* The limit of the cache, which the manager adapts to the free memory.
 *
 * Note [When the manager polls]
 *   Cached memory counts in the control group of the process that touched it first, and a group
 *   that is full is killed. So while anything is cached the manager reads the limits and the use
 *   of every group of every process of the session: once a second, and more often the less memory
 *   is free, since a program fills at most some gigabytes in a second. When memory gets scarce the
 *   manager lowers the limit of the cache, so that blocks are purged when they are freed, and
 *   purges cached blocks.
 *
 *   While nothing is cached there is nothing to watch. Then the manager sets `cache_unwatched` and
 *   sleeps. The first process that caches a block clears the word and wakes the manager (a futex).
 *
 *   - That process is killed between clearing the word and the wake: the manager sleeps until a
 *     client, a death or the next process that caches wakes it, and reads the word whenever it
 *     wakes.
 *   - The manager is killed: the next one begins with a poll.
 *   - The manager is stopped: nothing is given back meanwhile. The cache stays within its limit. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "allocator/cache.h"
#include "allocator/purge.h"
#include "base/clock.h"
#include "base/settings.h"
#include "manager/manager.h"
#include "platform/linux/cgroup.h"
#include "platform/linux/futex.h"
#include "platform/linux/memory_size.h"
#include "segment/segment.h"

enum {
    GROUPS = 128,
    POLL_MS = 1000,
    SOONEST_MS = 5,
    EMPTY_MS = 50,        /* between polls just after the cache became empty, */
    IDLE_POLLS = 20,      /* and how many of them come before the manager sleeps */
    IDLE_NS = 2000000000, /* before an unused cache is purged, if memory is scarce */
};
static const uint64_t FASTEST = (uint64_t)4 << 30; /* bytes a second that a program fills */
static const uint64_t SCARCE = (uint64_t)1 << 30;

struct mpshm__cache_limit {
    struct mpshm__group groups[GROUPS];
    int count;
    int event_fd;
    int asked; /* MP_CACHE_BYTES sets the limit */
    uint64_t wanted;
    uint64_t groups_at, groups_of; /* when they were collected, and a checksum of the processes */
    uint64_t poll_at;
    int idle;
    uint64_t cached, changed_at; /* at the last poll, and when it last changed */
    int64_t off;                 /* the error of the sum at the last poll */
    struct mpshm__control *control;
};

static void *wait_for_cached(void *arg)
{
    struct mpshm__cache_limit *w = arg;
    uint64_t one = 1;

    for (uint32_t told = 1;;) {
        uint32_t unwatched = atomic_load(&w->control->cache_unwatched);
        if (!unwatched && told && write(w->event_fd, &one, sizeof(one)) < 0)
            return NULL;
        told = unwatched;
        mpshm__futex_wait(&w->control->cache_unwatched, unwatched);
    }
}

int mpshm__cache_limit_begin(struct manager *m)
{
    struct mpshm__cache_limit *w = calloc(1, sizeof(*w));
    pthread_t thread;

    if (w == NULL)
        return -ENOMEM;
    w->asked = mpshm__asked_cache_bytes(&w->wanted);
    w->control = m->session.control;
    w->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    m->cache = w;
    w->idle = IDLE_POLLS;
    atomic_store(&w->control->cache_unwatched, 0);
    int err = w->event_fd < 0 ? errno : pthread_create(&thread, NULL, wait_for_cached, w);
    if (err != 0)
        return -err;
    pthread_detach(thread);
    mpshm__cache_limit_poll(m);
    return 0;
}

int mpshm__cache_limit_fd(const struct manager *m)
{
    return m->cache->event_fd;
}

/* ---- free memory ---- */

static void collect_groups(struct manager *m)
{
    struct mpshm__cache_limit *w = m->cache;
    char pid[16];

    w->count = mpshm__groups_of("", "self", "memory", w->groups, 0, GROUPS);
    for (int slot = 0; slot < MPSHM__SLOTS; slot++) {
        const struct mpshm__slot *s = &w->control->slots[slot];
        if (atomic_load(&s->state) != MPSHM__SLOT_TAKEN || atomic_load(&s->pid) <= 0)
            continue;
        snprintf(pid, sizeof(pid), "%d", atomic_load(&s->pid));
        w->count = mpshm__groups_of("", pid, "memory", w->groups, w->count, GROUPS);
    }
}

/* A checksum that differs when other processes are in the session. */
static uint64_t processes(const struct mpshm__control *control)
{
    uint64_t sum = 1;

    for (int slot = 0; slot < MPSHM__SLOTS; slot++)
        if (atomic_load(&control->slots[slot].state) == MPSHM__SLOT_TAKEN)
            sum = sum * 0x9e3779b97f4a7c15u + (uint64_t)atomic_load(&control->slots[slot].pid);
    return sum;
}

/* The machine itself, as if it were a group. */
static int read_machine(struct mpshm__group *group)
{
    uint64_t available = mpshm__memory_available();

    group->limit = mpshm__memory_bytes();
    group->used = available < group->limit ? group->limit - available : 0;
    return available != 0;
}

/* Memory that must stay free, so that the manager notices in time when a program fills it. */
static int64_t reserve_of(uint64_t limit)
{
    uint64_t reserve = limit / 8;

    if (reserve < (uint64_t)32 << 20)
        reserve = (uint64_t)32 << 20;
    if (reserve > (uint64_t)2 << 30)
        reserve = (uint64_t)2 << 30;
    return (int64_t)(reserve < limit / 2 ? reserve : limit / 2);
}

/* The lowest limit; the free memory of the fullest group; and how much of it may be filled. */
static uint64_t measure(struct mpshm__cache_limit *w, int64_t *headroom, int64_t *slack)
{
    struct mpshm__group machine = {0};
    uint64_t least = mpshm__memory_bytes();

    *headroom = *slack = INT64_MAX;
    for (int i = -1; i < w->count; i++) {
        struct mpshm__group *group = i < 0 ? &machine : &w->groups[i];
        if (!(i < 0 ? read_machine(group) : mpshm__group_read(group)))
            continue;
        int64_t room = (int64_t)group->limit - (int64_t)group->used;
        if (group->limit < least)
            least = group->limit;
        if (room < *headroom)
            *headroom = room < 0 ? 0 : room;
        if (room - reserve_of(group->limit) < *slack)
            *slack = room - reserve_of(group->limit);
    }
    return least;
}

/* ---- giving back ---- */

static uint64_t purge(struct manager *m, uint64_t nbytes)
{
    uint64_t gained = 0;

    for (uint32_t a = 0; a < m->session.segment_top && gained < nbytes; a++) {
        struct mpshm__segment *segment = m->session.segments[a];
        if (segment == NULL || atomic_load(&segment->header->cached) == 0)
            continue;
        for (uint32_t i = 0, used = mpshm__used(segment); i < used && gained < nbytes; i++)
            gained += mpshm__purge_free(m->session.control, segment, i);
    }
    return gained;
}

/* A process that was killed between two additions has left the session's sum different from the
 * sums of its segments. If the difference is the same twice, no process is just adding. */
static void correct(struct manager *m)
{
    struct mpshm__cache_limit *w = m->cache;
    uint64_t sum = 0, said = atomic_load(&w->control->cached_bytes);

    for (uint32_t a = 0; a < m->session.segment_top; a++)
        if (m->session.segments[a] != NULL)
            sum += atomic_load(&m->session.segments[a]->header->cached);
    int64_t off = (int64_t)(said - sum);
    if (off != 0 && off == w->off &&
        atomic_compare_exchange_strong(&w->control->cached_bytes, &said, sum))
        off = 0;
    w->off = off;
}

static void sleep_until_something_is_cached(struct mpshm__cache_limit *w)
{
    w->poll_at = UINT64_MAX;
    atomic_store(&w->control->cache_unwatched, 1);
    mpshm__futex_wake(&w->control->cache_unwatched); /* wakes the thread, which then waits for 0 */
    if (atomic_load(&w->control->cached_bytes) != 0) /* cached before the word was set */
        mpshm__cache_wake(w->control);
}

void mpshm__cache_limit_poll(struct manager *m)
{
    struct mpshm__cache_limit *w = m->cache;
    uint64_t now = mpshm__now_ns(), n, gained = 0, interval = POLL_MS;
    int64_t headroom, slack;

    if (read(w->event_fd, &n, sizeof(n)) == sizeof(n) ||
        (w->poll_at == UINT64_MAX && !atomic_load(&w->control->cache_unwatched)))
        w->poll_at = w->idle = w->groups_at = 0;
    if (now < w->poll_at)
        return;
    n = processes(w->control);
    if (n != w->groups_of || now - w->groups_at >= POLL_MS * 1000000ull) {
        collect_groups(m);
        correct(m);
        w->groups_at = now;
        w->groups_of = n;
    }
    uint64_t least = measure(w, &headroom, &slack);
    uint64_t cached = atomic_load(&w->control->cached_bytes);
    uint64_t limit = w->asked ? w->wanted : least / 8;
    /* As much stays free as is cached, beside the reserve, since the manager may get to run
     * late. */
    int64_t allowed =
        slack < INT64_MAX - (int64_t)cached ? ((int64_t)cached + slack) / 2 : INT64_MAX;
    int scarce = allowed < (int64_t)limit;

    if (cached != w->cached)
        w->changed_at = now;
    w->cached = cached;
    if (scarce)
        limit = allowed > 0 ? (uint64_t)allowed : 0;
    atomic_store(&w->control->cache_limit, limit);
    if (cached > limit)
        gained = purge(m, cached - limit);
    else if (cached != 0 && headroom < (int64_t)SCARCE && now - w->changed_at > IDLE_NS)
        gained = purge(m, cached);
    w->idle = cached == 0 && !scarce ? w->idle + 1 : 0;
    if (w->idle > IDLE_POLLS) {
        sleep_until_something_is_cached(w);
        return;
    }
    if (cached == 0 && !scarce)
        interval = EMPTY_MS;
    /* If nothing was gained, only slabs are left, which their owners must purge. */
    if ((gained != 0 || cached <= limit) && (uint64_t)headroom / (FASTEST / 1000) < interval)
        interval = (uint64_t)headroom / (FASTEST / 1000);
    if (interval < SOONEST_MS)
        interval = SOONEST_MS;
    w->poll_at = now + (interval < POLL_MS ? interval : POLL_MS) * 1000000ull;
}

int mpshm__cache_limit_timeout(const struct manager *m)
{
    uint64_t now = mpshm__now_ns();

    if (m->cache->poll_at == UINT64_MAX)
        return -1;
    return m->cache->poll_at <= now ? 0 : (int)((m->cache->poll_at - now) / 1000000) + 1;
}
