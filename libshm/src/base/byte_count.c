/* Parse a number of bytes: "1073741824", "512MiB", "1.5 G". */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "mpshm.h"

/* K and KiB are 1024, kB is 1000. Upper and lower case are the same. */
static int unit_of(const char *text, uint64_t *unit)
{
    static const char LETTERS[] = "kmgtp";
    const char *letter;

    *unit = 1;
    if (text[0] == 0 || strcasecmp(text, "b") == 0 || strcasecmp(text, "bytes") == 0)
        return 0;
    letter = strchr(LETTERS, text[0] | 0x20);
    if (letter == NULL)
        return -EINVAL;
    text++;
    uint64_t base = 1024;
    if (strcasecmp(text, "b") == 0)
        base = 1000;
    else if (text[0] != 0 && strcasecmp(text, "i") != 0 && strcasecmp(text, "ib") != 0)
        return -EINVAL;
    for (long i = 0; i <= letter - LETTERS; i++)
        *unit *= base;
    return 0;
}

int mpshm_parse_bytes(const char *text, uint64_t *nbytes)
{
    uint64_t whole = 0, unit, fraction = 0, scale = 1, result;
    int digits = 0;

    while (*text == ' ' || *text == '\t')
        text++;
    for (; *text >= '0' && *text <= '9'; text++, digits++)
        if (__builtin_mul_overflow(whole, (uint64_t)10, &whole) ||
            __builtin_add_overflow(whole, (uint64_t)(*text - '0'), &whole))
            return -ERANGE;
    if (*text == '.')
        for (text++; *text >= '0' && *text <= '9'; text++, digits++)
            if (scale < 1000000) {
                fraction = fraction * 10 + (uint64_t)(*text - '0');
                scale *= 10;
            }
    if (digits == 0)
        return -EINVAL;
    while (*text == ' ' || *text == '\t')
        text++;

    char rest[16];
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t' || text[n - 1] == '\n'))
        n--;
    if (n >= sizeof(rest))
        return -EINVAL;
    memcpy(rest, text, n);
    rest[n] = 0;
    if (unit_of(rest, &unit) < 0)
        return -EINVAL;
    if (__builtin_mul_overflow(whole, unit, &result) ||
        __builtin_add_overflow(result, unit / scale * fraction + unit % scale * fraction / scale,
                               &result))
        return -ERANGE;
    *nbytes = result;
    return 0;
}
