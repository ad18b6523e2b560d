/* Code that the fuzz targets share: reading an input, and a session.
 *
 * A target is one function, LLVMFuzzerTestOneInput, which libFuzzer can drive. driver.h drives it
 * with seeded mutations where there is no libFuzzer. */
#ifndef FUZZ_H
#define FUZZ_H

#include "../tests/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A new runtime folder, unless the environment names one. */
__attribute__((unused)) static void have_a_session(void)
{
    if (getenv("MPSHM_RUNTIME_DIR") == NULL)
        set_up();
    else
        CHECK_EQ(mpshm_set_manager(getenv("SHM_MANAGER") ? getenv("SHM_MANAGER") : ""), 0);
}

/* The number of frames or handles that the target was given. */
static unsigned long fuzzed;

/* An input is read as a sequence of choices; past its end every choice is 0. */
struct choices {
    const uint8_t *at, *end;
};

__attribute__((unused)) static unsigned choose(struct choices *c, unsigned below)
{
    return c->at < c->end ? *c->at++ % below : 0;
}

__attribute__((unused)) static uint32_t choose_word(struct choices *c)
{
    uint32_t word = 0;

    for (int i = 0; i < 4; i++)
        word = word << 8 | choose(c, 256);
    return word;
}

/* Change up to seven bytes of `bytes`, as the input says. */
__attribute__((unused)) static void distort(struct choices *c, void *bytes, size_t size)
{
    for (unsigned n = choose(c, 8); n > 0; n--) {
        unsigned where = choose(c, 256) | choose(c, 256) << 8;
        ((uint8_t *)bytes)[where % size] ^= (uint8_t)choose(c, 256);
    }
}

#endif
