/* A driver for a fuzz target without libFuzzer: random inputs, and mutations of former inputs.
 *
 *   FUZZ_COUNT=n   go on until n handles or frames were tried (default: the short form)
 *   FUZZ_SEED=n    another sequence; the default is fixed, so that a failure can be repeated
 *   arguments      run these files, once each, and nothing else */
#ifndef DRIVER_H
#define DRIVER_H

#include <stdint.h>
#include <time.h>

#include "fuzz.h"

enum { INPUT_SIZE = 512, POOL = 64 };

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32) % n;
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text && text[0] ? strtoull(text, NULL, 10) : otherwise;
}

/* Mostly small changes of a former input: they keep an order of steps that reaches deep states. */
static size_t mutate(uint8_t *input, size_t size)
{
    switch (random_below(8)) {
    case 0: /* a new one */
        size = random_below(INPUT_SIZE);
        for (size_t i = 0; i < size; i++)
            input[i] = (uint8_t)random_below(256);
        break;
    case 1: /* shorter */
        size = size ? random_below((uint32_t)size) : 0;
        break;
    case 2: /* longer */
        while (size < INPUT_SIZE && random_below(16))
            input[size++] = (uint8_t)random_below(256);
        break;
    case 3: /* a part of it twice */
        if (size > 1 && size < INPUT_SIZE / 2) {
            uint32_t from = random_below((uint32_t)size);
            memcpy(input + size, input + from, size - from);
            size += size - from;
        }
        break;
    default:
        for (uint32_t n = 1 + random_below(4); n > 0 && size > 0; n--)
            input[random_below((uint32_t)size)] ^= (uint8_t)(1 << random_below(8));
        for (uint32_t n = random_below(3); n > 0 && size > 0; n--)
            input[random_below((uint32_t)size)] = (uint8_t)random_below(256);
    }
    return size;
}

/* An input of the corpus: it runs unchanged, and is kept to be mutated. */
static size_t run_file(const char *path, uint8_t *input)
{
    FILE *file = fopen(path, "rb");

    CHECK(file != NULL);
    size_t size = fread(input, 1, INPUT_SIZE, file);
    fclose(file);
    LLVMFuzzerTestOneInput(input, size);
    return size;
}

/* Run the given files, then at least `few` handles or frames, or as many as FUZZ_COUNT asks for. */
static int drive(int argc, char **argv, unsigned long few)
{
    static uint8_t pool[POOL][INPUT_SIZE];
    static size_t sizes[POOL];
    uint64_t count = number_from("FUZZ_COUNT", few), inputs = 0;
    uint64_t seed = number_from("FUZZ_SEED", 20260101);
    struct timespec from, to;

    for (int i = 1; i < argc; i++)
        sizes[i % POOL] = run_file(argv[i], pool[i % POOL]);
    random_state = seed * 0x9e3779b97f4a7c15u | 1;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (; fuzzed < count; inputs++) {
        uint32_t k = random_below(POOL);
        sizes[k] = mutate(pool[k], sizes[k]);
        LLVMFuzzerTestOneInput(pool[k], sizes[k]);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    if (getenv("FUZZ_COUNT"))
        printf("  seed %llu: %lu tried in %llu inputs, %.1f s\n", (unsigned long long)seed, fuzzed,
               (unsigned long long)inputs,
               (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9);
    return 0;
}

/* Drive in a child, and check that nothing is left when it has gone. */
static int drive_in_a_child(int argc, char **argv, unsigned long few)
{
    set_up();
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        exit(drive(argc, argv, few));
    int rc = reap(pid);
    if (rc == 0) {
        EVENTUALLY(entries_in(runtime_dir, "mpshm-") == 0);
        CHECK_EQ(rmdir(runtime_dir), 0);
    }
    return rc;
}

#endif
