/* The folder of a session: see runtime_folder.c. */
#ifndef MPSHM_RUNTIME_FOLDER_H
#define MPSHM_RUNTIME_FOLDER_H

#include <stddef.h>

#include "mpshm.h"

enum { MPSHM__PATH = 4096, MPSHM__ID_TEXT = 2 * MPSHM_ID_SIZE + 1 };

/* The path of the file `leaf` in the folder of session `id`; of the folder when `leaf` is "". */
void mpshm__session_path(const unsigned char *id, const char *leaf, char *path, size_t size);
/* Create the folder if it does not exist: 0 or -errno. */
int mpshm__session_make_folder(const unsigned char *id);
/* Remove the folder and the files in it. */
void mpshm__session_remove(const unsigned char *id);
/* Remove the lock of those who start a manager, and then the folder if it is empty. */
void mpshm__session_remove_start(const unsigned char *id);
/* Remove the folder if it is empty. */
void mpshm__session_remove_empty(const unsigned char *id);
/* Call `act` for each session of this user that has a folder. */
void mpshm__for_each_session(void (*act)(const unsigned char *id, void *arg), void *arg);
/* The name of a session's folder. */
void mpshm__format_id(const unsigned char *id, char hex[MPSHM__ID_TEXT]);
/* 1 when `hex` is the name of a session's folder. */
int mpshm__parse_id(const char *hex, unsigned char *id);

#endif
