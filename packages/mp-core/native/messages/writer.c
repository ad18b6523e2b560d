/* The memory that a small pickle is written into: some on the stack, then more. */
#include <string.h>

#include "messages/messages.h"
#include "messages/plan.h"

void mp_begin_writing(mp_writer *to)
{
    to->data = to->few;
    to->room = sizeof(to->few);
    to->more = NULL;
    to->used = 0;
}

void mp_end_writing(mp_writer *to)
{
    PyMem_Free(to->more);
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
