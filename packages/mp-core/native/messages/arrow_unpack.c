/* Tables of other libraries by Arrow's C stream, on their way in: a stream over the memory that
 * arrived.
 *
 * Note [Who keeps the memory]
 *   A reader may keep a chunk, or move a column out of it, and release them in any order, from any
 *   thread, without the GIL, also while the interpreter ends. So the memory has an owner with a
 *   count: the stream, the schema and each array have a reference. The last one releases the block,
 *   which waits for nobody (see Note [The GIL and libshm's lock] in block.c). The owner has a copy
 *   of the layout, too, in which the texts of the schema are.
 *
 *   The layout is in Note [A packed stream] of arrow_pack.c. It is read while the reader asks for
 *   the chunks; one that is damaged is an error of the stream. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "messages/arrow.h"
#include "messages/messages.h"

typedef struct {
    atomic_int references;
    mpshm_block block; /* or: */
    void *copy;
    const char *memory, *layout;
    int64_t nbytes, layout_nbytes;
} owner;

static owner *keep(owner *o)
{
    atomic_fetch_add(&o->references, 1);
    return o;
}

static void drop(owner *o)
{
    if (atomic_fetch_sub(&o->references, 1) != 1)
        return;
    if (o->block.segment != NULL)
        mpshm_block_release(&o->block);
    free(o->copy);
    free((void *)o->layout);
    free(o);
}

/* The unread rest of a layout. */
typedef struct {
    owner *of;
    int64_t at;
} cursor;

static int take(cursor *c, int64_t *number)
{
    if (c->of->layout_nbytes - c->at < (int64_t)sizeof(*number))
        return -EINVAL;
    memcpy(number, c->of->layout + c->at, sizeof(*number));
    c->at += (int64_t)sizeof(*number);
    return 0;
}

static int take_text(cursor *c, const char **text)
{
    int64_t nbytes;

    *text = NULL;
    if (take(c, &nbytes) < 0 || nbytes < 0 || nbytes > c->of->layout_nbytes - c->at)
        return -EINVAL;
    if (nbytes == 0)
        return 0;
    *text = c->of->layout + c->at;
    if ((*text)[nbytes - 1] != '\0')
        return -EINVAL;
    c->at += (nbytes + 7) & ~(int64_t)7;
    return 0;
}

/* A number of things of 8 bytes and more each, which follow. */
static int take_count(cursor *c, int64_t *count)
{
    return take(c, count) < 0 || *count < 0 || *count > (c->of->layout_nbytes - c->at) / 8 ? -EINVAL
                                                                                           : 0;
}

/* ---- schema ---- */

static void release_schema(arrow_schema *s)
{
    for (int64_t i = 0; s->children != NULL && i < s->n_children; i++) {
        if (s->children[i] != NULL && s->children[i]->release != NULL)
            s->children[i]->release(s->children[i]);
        free(s->children[i]);
    }
    if (s->dictionary != NULL && s->dictionary->release != NULL)
        s->dictionary->release(s->dictionary);
    free(s->dictionary);
    free(s->children);
    drop(s->context);
    s->release = NULL;
}

/* The caller releases `s`, also after an error. */
static int read_schema(cursor *c, arrow_schema *s, int depth)
{
    int64_t has_dictionary;

    *s = (arrow_schema){.release = release_schema, .context = keep(c->of)};
    if (depth == ARROW_DEPTH || take(c, &s->flags) < 0 || take_text(c, &s->format) < 0 ||
        s->format == NULL || take_text(c, &s->name) < 0 || take_text(c, &s->metadata) < 0)
        return -EINVAL;
    if (take_count(c, &s->n_children) < 0) {
        s->n_children = 0;
        return -EINVAL;
    }
    s->children = calloc((size_t)s->n_children + 1, sizeof(*s->children));
    if (s->children == NULL)
        return -ENOMEM;
    for (int64_t i = 0; i < s->n_children; i++) {
        s->children[i] = calloc(1, sizeof(*s));
        int rc = s->children[i] ? read_schema(c, s->children[i], depth + 1) : -ENOMEM;
        if (rc < 0)
            return rc;
    }
    if (take(c, &has_dictionary) < 0)
        return -EINVAL;
    if (!has_dictionary)
        return 0;
    s->dictionary = calloc(1, sizeof(*s));
    return s->dictionary ? read_schema(c, s->dictionary, depth + 1) : -ENOMEM;
}

/* ---- arrays ---- */

typedef struct {
    owner *of;
    int64_t *sizes;
    const void *buffers[];
} array_context;

static void release_array(arrow_array *a)
{
    array_context *own = a->context;

    for (int64_t i = 0; a->children != NULL && i < a->n_children; i++) {
        if (a->children[i] != NULL && a->children[i]->release != NULL)
            a->children[i]->release(a->children[i]);
        free(a->children[i]);
    }
    if (a->dictionary != NULL && a->dictionary->release != NULL)
        a->dictionary->release(a->dictionary);
    free(a->dictionary);
    free(a->children);
    drop(own->of);
    free(own->sizes);
    free(own);
    a->release = NULL;
}

static int read_buffers(cursor *c, arrow_array *a, array_context *own)
{
    int64_t at, nbytes;

    for (int64_t i = 0; i < a->n_buffers; i++) {
        if (take(c, &at) < 0 || take(c, &nbytes) < 0)
            return -EINVAL;
        if (at >= 0 && (nbytes < 0 || at > c->of->nbytes || nbytes > c->of->nbytes - at))
            return -EINVAL;
        if (at >= 0)
            own->buffers[i] = c->of->memory + at;
        else if (at == ARROW_SIZES)
            own->buffers[i] = own->sizes;
        if (i >= 2)
            own->sizes[i - 2] = nbytes;
    }
    return 0;
}

/* The caller releases `a` if its `release` is set, also after an error. */
static int read_array(cursor *c, arrow_array *a, int depth)
{
    int64_t n_children, has_dictionary;

    *a = (arrow_array){.release = NULL};
    if (depth == ARROW_DEPTH || take(c, &a->length) < 0 || take(c, &a->null_count) < 0 ||
        take(c, &a->offset) < 0 || take_count(c, &a->n_buffers) < 0 || a->length < 0 ||
        a->offset < 0)
        return -EINVAL;
    array_context *own = calloc(1, sizeof(*own) + (size_t)a->n_buffers * sizeof(own->buffers[0]));
    if (own == NULL)
        return -ENOMEM;
    own->of = keep(c->of);
    own->sizes = calloc((size_t)a->n_buffers + 1, sizeof(*own->sizes));
    a->buffers = own->buffers;
    a->context = own;
    a->release = release_array;
    if (own->sizes == NULL)
        return -ENOMEM;
    if (read_buffers(c, a, own) < 0 || take_count(c, &n_children) < 0)
        return -EINVAL;
    a->children = calloc((size_t)n_children + 1, sizeof(*a->children));
    if (a->children == NULL)
        return -ENOMEM;
    a->n_children = n_children;
    for (int64_t i = 0; i < n_children; i++) {
        a->children[i] = calloc(1, sizeof(*a));
        int rc = a->children[i] ? read_array(c, a->children[i], depth + 1) : -ENOMEM;
        if (rc < 0)
            return rc;
    }
    if (take(c, &has_dictionary) < 0)
        return -EINVAL;
    if (!has_dictionary)
        return 0;
    a->dictionary = calloc(1, sizeof(*a));
    return a->dictionary ? read_array(c, a->dictionary, depth + 1) : -ENOMEM;
}

/* ---- the stream ---- */

typedef struct {
    cursor next; /* the next chunk */
    int64_t chunks;
    const char *error;
} stream_context;

static int failed(stream_context *own, int rc)
{
    own->error = rc == -ENOMEM ? "out of memory" : "the message of a table is damaged";
    own->chunks = 0;
    return -rc;
}

static int get_schema(arrow_stream *stream, arrow_schema *out)
{
    stream_context *own = stream->context;
    cursor from_start = {own->next.of, 0};
    int rc = read_schema(&from_start, out, 0);

    if (rc < 0) {
        out->release(out);
        return failed(own, rc);
    }
    return 0;
}

static int get_next(arrow_stream *stream, arrow_array *out)
{
    stream_context *own = stream->context;

    out->release = NULL;
    if (own->chunks == 0)
        return 0;
    own->chunks--;
    int rc = read_array(&own->next, out, 0);
    if (rc == 0)
        return 0;
    if (out->release != NULL)
        out->release(out);
    return failed(own, rc);
}

static const char *get_last_error(arrow_stream *stream)
{
    return ((stream_context *)stream->context)->error;
}

static void release_stream(arrow_stream *stream)
{
    stream_context *own = stream->context;

    drop(own->next.of);
    free(own);
    stream->release = NULL;
}

static void destroy_capsule(PyObject *capsule)
{
    arrow_stream *stream = PyCapsule_GetPointer(capsule, ARROW_STREAM);

    if (stream->release != NULL) /* the reader has not moved it */
        stream->release(stream);
    free(stream);
}

/* An owner of the memory, a Block or an object with its bytes; NULL with an exception. */
static owner *own(PyObject *memory, const char *layout, Py_ssize_t layout_nbytes)
{
    owner *o = calloc(1, sizeof(*o));
    char *kept = o ? malloc((size_t)layout_nbytes + 1) : NULL;
    Py_buffer bytes;

    if (kept == NULL) {
        free(o);
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(kept, layout, (size_t)layout_nbytes);
    *o = (owner){.references = 1, .layout = kept, .layout_nbytes = layout_nbytes};
    if (PyObject_GetBuffer(memory, &bytes, PyBUF_SIMPLE) < 0) {
        drop(o);
        return NULL;
    }
    o->nbytes = bytes.len;
    o->memory = bytes.buf;
    if (!PyObject_TypeCheck(memory, (PyTypeObject *)mp_block_type) ||
        mp_block_find(bytes.buf, &o->block) < 0) {
        size_t room = ((size_t)bytes.len + ARROW_ALIGNMENT) & ~(size_t)(ARROW_ALIGNMENT - 1);
        o->block.segment = NULL;
        o->memory = o->copy = aligned_alloc(ARROW_ALIGNMENT, room);
        if (o->copy != NULL)
            memcpy(o->copy, bytes.buf, (size_t)bytes.len);
    }
    PyBuffer_Release(&bytes);
    if (o->memory == NULL) {
        drop(o);
        PyErr_NoMemory();
        return NULL;
    }
    return o;
}

/* unpack_arrow(layout, memory) -> the capsule of a stream */
PyObject *mp_py_unpack_arrow(PyObject *module, PyObject *args)
{
    const char *layout;
    Py_ssize_t nbytes;
    PyObject *memory;
    arrow_schema schema;

    if (!PyArg_ParseTuple(args, "y#O:unpack_arrow", &layout, &nbytes, &memory))
        return NULL;
    owner *o = own(memory, layout, nbytes);
    if (o == NULL)
        return NULL;
    stream_context *context = calloc(1, sizeof(*context));
    arrow_stream *stream = calloc(1, sizeof(*stream));
    if (context == NULL || stream == NULL) {
        free(context);
        free(stream);
        drop(o);
        return PyErr_NoMemory();
    }
    context->next = (cursor){o, 0};
    *stream = (arrow_stream){get_schema, get_next, get_last_error, release_stream, context};
    int rc = read_schema(&context->next, &schema, 0); /* to find the first chunk */
    schema.release(&schema);
    if (rc == 0)
        rc = take_count(&context->next, &context->chunks);
    PyObject *capsule = rc < 0 ? NULL : PyCapsule_New(stream, ARROW_STREAM, destroy_capsule);
    if (rc < 0)
        PyErr_SetString(PyExc_ValueError, "the message of a table is damaged");
    if (capsule == NULL) {
        release_stream(stream);
        free(stream);
    }
    return capsule;
}
