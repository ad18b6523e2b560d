/* Arrow's C data interface and C stream interface, as its specification has them. */
#ifndef MP_ARROW_H
#define MP_ARROW_H

#include <stdint.h>

#include "mp_core.h"

typedef struct arrow_schema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct arrow_schema **children, *dictionary;
    void (*release)(struct arrow_schema *);
    void *context;
} arrow_schema;

typedef struct arrow_array {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct arrow_array **children, *dictionary;
    void (*release)(struct arrow_array *);
    void *context;
} arrow_array;

typedef struct arrow_stream {
    int (*get_schema)(struct arrow_stream *, arrow_schema *);
    int (*get_next)(struct arrow_stream *, arrow_array *);
    const char *(*get_last_error)(struct arrow_stream *);
    void (*release)(struct arrow_stream *);
    void *context;
} arrow_stream;

#define ARROW_STREAM "arrow_array_stream" /* the name of its capsule */

enum {
    ARROW_ALIGNMENT = 64, /* of each buffer in the memory, as Arrow advises */
    ARROW_DEPTH = 64,     /* of nested types */
    /* instead of a buffer's position: */
    ARROW_NONE = -1, /* there is none */
    ARROW_SIZES =
        -2, /* the sizes of the buffers of texts, which precede it: the third to the last */
};

#endif
