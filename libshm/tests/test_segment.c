/* Segments alone: sizes, damaged tables, limits of the process, the adopter's lists, and purges
 * by the manager under a living owner. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/resource.h>

#include "memory.h"
#include "allocator/allocator.h"
#include "allocator/grow.h"
#include "allocator/purge.h"
#include "allocator/size_class.h"
#include "reference/reference.h"
#include "segment/memory_object.h"

static const unsigned char SESSION[MPSHM_ID_SIZE] = "a test's session";
static struct mpshm__control *control;

static struct mpshm__segment *created(int strategy, uint64_t size, uint64_t need)
{
    struct mpshm__segment *segment = NULL;

    CHECK_EQ(mpshm__segment_create(strategy, size, mpshm__class_bytes(mpshm__class_of(need)),
                                   SESSION, NULL, &segment),
             0);
    return segment;
}

static void done_with(struct mpshm__segment *segment)
{
    if (segment->strategy == MPSHM_FILE_SYSTEM)
        mpshm__object_unlink(segment->nonce);
    mpshm__segment_unmap(segment);
}

static uint32_t allocated(struct mpshm__segment *segment, uint64_t nbytes, int zeroed)
{
    uint32_t i = 0;
    int err = -EXFULL;

    for (int s = MPSHM__FROM_DIRTY; err == -EXFULL && s <= MPSHM__FROM_FRESH_SPACE; s++)
        err = mpshm__allocate_in(control, segment, (enum mpshm__source)s, nbytes, zeroed, &i);
    CHECK_EQ(err, 0);
    atomic_store(&segment->blocks[i].in_flight, 0);
    atomic_fetch_or(&segment->blocks[i].state, MPSHM__LIVE);
    return i;
}

static char *at(struct mpshm__segment *segment, uint32_t i)
{
    return segment->data + (uint64_t)atomic_load(&segment->blocks[i].where) * 64;
}

static void a_class_is_large_enough_for_its_sizes(void)
{
    uint64_t before = 0;

    for (uint32_t c = 0; c < MPSHM__CLASSES; c++) {
        CHECK(mpshm__class_bytes(c) > before);
        before = mpshm__class_bytes(c);
        CHECK_EQ(mpshm__class_of(before), c);
        CHECK_EQ(mpshm__class_of(before + 1), c + 1);
    }
    CHECK(mpshm__class_of(MPSHM__LARGEST) < MPSHM__CLASSES);
}

static void segments_double(void)
{
    uint64_t total = 0;
    int count = 0;

    for (; total < (uint64_t)1 << 36; count++)
        total += mpshm__next_segment_size(total);
    CHECK(count <= 12);
    CHECK_EQ(mpshm__next_segment_size(0), 64 << 20);
}

/* This takes address space and no memory, so it runs on any machine. */
static void a_block_beyond_the_offsets_has_a_segment_of_its_own(void)
{
    uint64_t need = (uint64_t)300 << 30;
    struct mpshm__segment *segment = created(MPSHM_FILE_DESCRIPTOR, 64 << 20, need);
    uint32_t i = allocated(segment, need, 1);

    CHECK_EQ(at(segment, i) - segment->data, 0);
    at(segment, i)[0] = 1;
    at(segment, i)[need - 1] = 2;
    mpshm__try_free(control, segment, i);
    CHECK_EQ(allocated(segment, need, 1), i);
    CHECK_EQ(at(segment, i)[need - 1], 0);
    done_with(segment);
}

static void a_damaged_offset_does_not_clear_another_block(int strategy)
{
    struct mpshm__segment *segment = created(strategy, 64 << 20, 1);
    uint32_t a = allocated(segment, 1 << 20, 0), b = allocated(segment, 1 << 20, 0),
             c = allocated(segment, 1 << 20, 0);

    memset(at(segment, a), 1, 1 << 20);
    memset(at(segment, b), 2, 1 << 20);
    memset(at(segment, c), 3, 1 << 20);
    uint32_t good = atomic_load(&segment->blocks[b].where);
    atomic_store(&control->cache_limit, 0);
    for (int k = -512; k <= 512; k += 64) { /* 64 units are a page */
        if (k == 0)
            continue;
        atomic_store(&segment->blocks[b].where, (uint32_t)((int)good + k * 64));
        CHECK_EQ(mpshm__purge_pages(segment, b), 0);
    }
    uint32_t class_of_b = atomic_load(&segment->metadata[b].size_class);
    atomic_store(&segment->blocks[b].where, good);
    atomic_store(&segment->metadata[b].size_class, (uint8_t)(class_of_b + 1));
    CHECK_EQ(mpshm__purge_pages(segment, b), 0);
    for (int k = 0; k < 1 << 20; k += 4096) {
        CHECK_EQ(at(segment, a)[k], 1);
        CHECK_EQ(at(segment, c)[k], 3);
    }
    atomic_store(&segment->metadata[b].size_class, (uint8_t)class_of_b);
    CHECK_EQ(mpshm__purge_pages(segment, b), 1);
    CHECK_EQ(at(segment, b)[0], 0);
    CHECK_EQ(at(segment, a)[(1 << 20) - 1], 1);
    CHECK_EQ(at(segment, c)[0], 3);
    atomic_store(&control->cache_limit, UINT64_MAX / 2);
    done_with(segment);
}

static void the_cache_count_never_goes_below_zero(int strategy)
{
    struct mpshm__segment *segment = created(strategy, 64 << 20, 1);
    uint32_t i = allocated(segment, 100000, 0);

    mpshm__try_free(control, segment, i);
    atomic_store(&control->cached_bytes, 7); /* a process was killed between two lines */
    atomic_store(&segment->header->cached, 0);
    allocated(segment, 100000, 0);
    CHECK_EQ(atomic_load(&control->cached_bytes), 0);
    CHECK_EQ(atomic_load(&segment->header->cached), 0);
    done_with(segment);
}

/* ---- purged under a living owner ---- */

static void a_block_that_is_being_purged_is_not_handed_out(int strategy)
{
    struct mpshm__segment *segment = created(strategy, 64 << 20, 1);
    uint32_t a = allocated(segment, 1 << 20, 0), b = allocated(segment, 1 << 20, 0);

    memset(at(segment, a), 1, 1 << 20);
    memset(at(segment, b), 1, 1 << 20);
    mpshm__try_free(control, segment, a);
    mpshm__try_free(control, segment, b);
    mpshm__drain_remote_free(segment);
    /* A manager was killed here. */
    atomic_store(&segment->metadata[a].page_state, MPSHM__PURGING | MPSHM__LISTED);
    CHECK_EQ(allocated(segment, 1 << 20, 0), b);
    uint32_t c = allocated(segment, 1 << 20, 0);
    CHECK(c != a && c != b);
    mpshm__trim(control, segment);
    mpshm__purge_finish(control, segment);
    CHECK_EQ(atomic_load(&segment->metadata[a].page_state), MPSHM__PURGED | MPSHM__LISTED);
    uint32_t d = allocated(segment, 1 << 20, 0);
    CHECK_EQ(d, a);
    CHECK_EQ(at(segment, d)[5], 0);
    memset(at(segment, d), 1, 1 << 20); /* reserved again, or this is a SIGBUS */
    done_with(segment);
}

static void purged_blocks_are_counted_and_read_as_zero(int strategy)
{
    struct mpshm__segment *segment = created(strategy, 64 << 20, 1);
    uint32_t a = allocated(segment, 1 << 20, 0), b = allocated(segment, 1 << 20, 0);

    memset(at(segment, a), 1, 1 << 20);
    mpshm__try_free(control, segment, a);
    CHECK_EQ(mpshm__purge_free(control, segment, b), 0);       /* in use */
    CHECK_EQ(mpshm__purge_free(control, segment, a), 1 << 20); /* not yet in a private list */
    CHECK_EQ(mpshm__purge_free(control, segment, a), 0);
    CHECK_EQ(atomic_load(&segment->header->cached), 0);
    CHECK_EQ(allocated(segment, 1 << 20, 1), a);
    for (int k = 0; k < 1 << 20; k++)
        CHECK_EQ(at(segment, a)[k], 0);
    done_with(segment);
}

/* ---- adoption ---- */

static void an_adopter_lists_free_blocks_once_and_leaves_those_in_use(int strategy)
{
    enum { N = 400 };
    static const uint64_t SIZES[] = {64, 1000, 9000, 40000, 200000};
    static char mine[5 * N + 10000], seen[5 * N + 10000];
    struct mpshm__segment *segment = created(strategy, 256 << 20, 1);
    uint32_t entries[N];

    memset(mine, 0, sizeof(mine));
    memset(seen, 0, sizeof(seen));
    for (int k = 0; k < N; k++)
        entries[k] = allocated(segment, SIZES[k % 5], 0);
    for (int k = 0; k < N; k += 2)
        mpshm__try_free(control, segment, entries[k]);
    mpshm__drain_remote_free(segment);
    for (int k = 1; k < N; k += 8)
        mpshm__try_free(control, segment,
                        entries[k]); /* in the remote-free list when the owner dies */
    /* Killed while it drained the list: marked, and not yet detached. */
    atomic_fetch_or(&segment->metadata[entries[1]].page_state, MPSHM__LISTED);
    /* A process is between the exchange of the state and the list. */
    atomic_fetch_and(&segment->blocks[entries[3]].state, ~MPSHM__LIVE);
    atomic_store(&segment->metadata[entries[3]].page_state, MPSHM__DIRTY);
    for (int k = 0; k < N; k++)
        if (atomic_load(&segment->blocks[entries[k]].state) & MPSHM__LIVE)
            mine[entries[k]] = 1;
    mine[entries[3]] = 1;

    segment->own = 0; /* as a fork leaves it to a child */
    CHECK_EQ(mpshm__segment_adopt(control, segment), 0);
    uint32_t used = mpshm__used(segment);
    for (uint64_t s = 0; s < 5; s++)
        for (uint32_t i = 0; i < used;) { /* until it takes fresh space */
            i = allocated(segment, SIZES[s], 0);
            CHECK(i < sizeof(seen) && !mine[i] && !seen[i]);
            seen[i] = 1;
            memset(at(segment, i), 1, SIZES[s]);
        }
    for (uint32_t i = 0; i < used; i++)
        CHECK(mine[i] || seen[i]); /* nothing is lost */
    done_with(segment);
}

static void a_segment_with_damaged_tables_is_not_adopted(int strategy)
{
    struct mpshm__segment *segment = created(strategy, 64 << 20, 1);

    allocated(segment, 1000, 0);
    atomic_store(&segment->blocks[3].where, 77);
    CHECK_EQ(mpshm__segment_adopt(control, segment), -EBADMSG);
    done_with(segment);
}

/* ---- limits of a process ---- */

static void in_a_child(void (*act)(int), int strategy)
{
    pid_t pid = forked();

    if (pid == 0) {
        act(strategy);
        _exit(0);
    }
    CHECK_EQ(reap(pid), 0);
}

static void some_arrays(int strategy)
{
    mpshm_block b[50];

    for (int i = 0; i < 50; i++) {
        CHECK_EQ(mpshm_block_allocate(strategy, 100000, 0, &b[i]), 0);
        memset(b[i].data, i, 100000);
    }
    for (int i = 0; i < 50; i++)
        mpshm_block_release(&b[i]);
}

static void little_address_space_is_enough_for_small_arrays(int strategy)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    struct rlimit limit = {(rlim_t)1 << 30, RLIM_INFINITY};

    CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    /* The manager has room for the first segments of many processes. */
    CHECK_EQ(mpshm__next_segment_size(0), 1 << 20);
    CHECK_EQ(mpshm__next_segment_size(3 << 20), 4 << 20);
    CHECK_EQ(mpshm__next_segment_size(1 << 30), 32 << 20);
#endif
    some_arrays(strategy);
}

static void locked_memory_is_enough_for_small_arrays(int strategy)
{
    struct rlimit limit = {(rlim_t)1 << 30, (rlim_t)1 << 30};

    if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0 || mlockall(MCL_FUTURE) < 0)
        _exit(0);
    some_arrays(strategy);
    mpshm_empty_cache();
    some_arrays(strategy);
}

/* SIGXFSZ kills, unless the limit is checked first. */
static void a_limit_on_files_is_an_error_and_no_signal(int strategy)
{
    struct rlimit limit = {8 << 20, RLIM_INFINITY};
    mpshm_block b;

    signal(SIGXFSZ, SIG_DFL);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_EQ(mpshm_block_allocate(strategy, 1 << 20, 0, &b), 0); /* in a small segment */
    memset(b.data, 1, b.nbytes);
    mpshm_block_release(&b);
    CHECK_EQ(mpshm_block_allocate(strategy, 100 << 20, 0, &b), -EFBIG);
    limit.rlim_cur = 4096;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_EQ(mpshm_block_allocate(strategy, 50 << 20, 0, &b), -EFBIG);
}

/* ---- core dumps ---- */

static int is_left_out(const void *address)
{
    char line[512];
    unsigned long from, to;
    int inside = 0, dd = -1;
    FILE *file = fopen("/proc/self/smaps", "r");

    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = from <= (uintptr_t)address && (uintptr_t)address < to;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            dd = strstr(line, " dd") != NULL;
    }
    fclose(file);
    return dd;
}

static void a_core_dump_leaves_segments_out(int strategy)
{
    mpshm_block b;

    CHECK_EQ(mpshm_block_allocate(strategy, 80, 0, &b), 0);
    CHECK_EQ(is_left_out(b.data), 1);
    CHECK_EQ(is_left_out(((struct mpshm__segment *)b.segment)->header), 1);
}

static void a_core_dump_includes_allocated_data_when_asked(int strategy)
{
    mpshm_block b;

    setenv("MPSHM_DUMP", "1", 1);
    CHECK_EQ(mpshm_block_allocate(strategy, 80, 0, &b), 0);
    struct mpshm__segment *segment = b.segment;
    CHECK_EQ(is_left_out(b.data), 0);
    CHECK_EQ(is_left_out(segment->data + segment->room - 1), 1);
    CHECK_EQ(mpshm_block_allocate(strategy, 30 << 20, 0, &b), 0);
    CHECK_EQ(is_left_out((char *)b.data + (20 << 20)), 0);
}

int main(void)
{
    static void (*const tests[])(int) = {
        a_damaged_offset_does_not_clear_another_block,
        the_cache_count_never_goes_below_zero,
        a_block_that_is_being_purged_is_not_handed_out,
        purged_blocks_are_counted_and_read_as_zero,
        an_adopter_lists_free_blocks_once_and_leaves_those_in_use,
        a_segment_with_damaged_tables_is_not_adopted,
    };
    static void (*const limits[])(int) = {
        little_address_space_is_enough_for_small_arrays, locked_memory_is_enough_for_small_arrays,
        a_limit_on_files_is_an_error_and_no_signal,      a_core_dump_leaves_segments_out,
        a_core_dump_includes_allocated_data_when_asked,
    };

    set_up();
    if (is_emulated())
        SKIP("valgrind has no room for large segments: MPSHM_SEGMENT_BYTES makes all alike");
    control = calloc(1, sizeof(*control));
    atomic_store(&control->cache_limit, UINT64_MAX / 2);
    a_class_is_large_enough_for_its_sizes();
    segments_double();
    a_block_beyond_the_offsets_has_a_segment_of_its_own();
    for (int s = 0; s < 2; s++) {
        for (unsigned t = 0; t < sizeof(tests) / sizeof(*tests); t++)
            tests[t](STRATEGIES[s]);
        for (unsigned t = 0; t < sizeof(limits) / sizeof(*limits); t++)
            in_a_child(limits[t], STRATEGIES[s]);
    }
    free(control);
    tear_down();
    return 0;
}
