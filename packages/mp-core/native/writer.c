/* The memory that the pickle of a small message is written into: some on the stack, then more. */
#include <string.h>

#include "native.h"

void mp_begin_writing(mp_writer *to, int may_share, PyObject *forking_pickler)
{
    to->data = to->few;
    to->room = sizeof(to->few);
    to->more = NULL;
    to->used = 0;
    to->objects = to->registered = to->seen_count = 0;
    to->may_share = may_share;
    to->handles = NULL;
    to->forking_pickler = forking_pickler;
}

char *mp_writer_room(mp_writer *to, size_t nbytes)
{
    if (to->room - to->used < nbytes) {
        size_t room = 2 * (to->used + nbytes);
        char *more = PyMem_Realloc(to->more, room);
        if (more == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        if (to->more == NULL)
            memcpy(more, to->few, to->used);
        to->data = to->more = more;
        to->room = room;
    }
    char *at = to->data + to->used;
    to->used += nbytes;
    return at;
}
