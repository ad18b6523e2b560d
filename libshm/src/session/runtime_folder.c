/* The folder of a session.
 *
 *     <runtime>/mpshm-<uid>/            mode 0700 and owned by this user, or refused
 *         <session, 32 hex digits>/
 *             control                   the control file; every process of the session locks it
 *             start                     locked by a process that starts a manager
 *             socket                    the manager listens here
 *
 * <runtime> is MPSHM_RUNTIME_DIR or /tmp. Only this file joins paths. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/failed_call.h"
#include "base/settings.h"
#include "mpshm.h"
#include "session/runtime_folder.h"

static void user_path(char *path, size_t size)
{
    snprintf(path, size, "%s/mpshm-%u", mpshm__runtime_root(), (unsigned)geteuid());
}

void mpshm__format_id(const unsigned char *id, char hex[MPSHM__ID_TEXT])
{
    for (int i = 0; i < MPSHM_ID_SIZE; i++)
        snprintf(hex + 2 * i, 3, "%02x", id[i]);
}

void mpshm__session_path(const unsigned char *id, const char *leaf, char *path, size_t size)
{
    char user[MPSHM__PATH], hex[MPSHM__ID_TEXT];

    mpshm__format_id(id, hex);
    user_path(user, sizeof(user));
    snprintf(path, size, "%s/%s%s%s", user, hex, leaf[0] ? "/" : "", leaf);
}

/* A private folder: created, or found with the right owner and mode; otherwise refused. */
static int private_dir(const char *path)
{
    struct stat st;

    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return mpshm__failed("mkdir");
    if (lstat(path, &st) < 0)
        return mpshm__failed("lstat");
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0)
        return -EACCES;
    return 0;
}

int mpshm__session_make_folder(const unsigned char *id)
{
    char path[MPSHM__PATH];
    int err;

    user_path(path, sizeof(path));
    if (path[0] != '/')
        return -EINVAL; /* The manager, and a process that changes its working directory, would use
                           another folder. */
    err = private_dir(path);
    if (err < 0)
        return err;
    mpshm__session_path(id, "", path, sizeof(path));
    return private_dir(path);
}

void mpshm__session_remove(const unsigned char *id)
{
    static const char *const LEAVES[] = {"socket", "start", "control"};
    char path[MPSHM__PATH];

    for (int i = 0; i < 3; i++) {
        mpshm__session_path(id, LEAVES[i], path, sizeof(path));
        unlink(path);
    }
    mpshm__session_remove_empty(id);
}

void mpshm__session_remove_start(const unsigned char *id)
{
    char path[MPSHM__PATH];

    mpshm__session_path(id, "start", path, sizeof(path));
    unlink(path);
    mpshm__session_remove_empty(id);
}

void mpshm__session_remove_empty(const unsigned char *id)
{
    char path[MPSHM__PATH];

    mpshm__session_path(id, "", path, sizeof(path));
    rmdir(path);
    user_path(path, sizeof(path)); /* also empty, if this was the user's last session */
    rmdir(path);
}

void mpshm__for_each_session(void (*act)(const unsigned char *id, void *arg), void *arg)
{
    char path[MPSHM__PATH];
    struct dirent *entry;
    DIR *dir;

    user_path(path, sizeof(path));
    dir = opendir(path);
    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL) {
        unsigned char id[MPSHM_ID_SIZE];
        if (mpshm__parse_id(entry->d_name, id))
            act(id, arg);
    }
    closedir(dir);
}

int mpshm__parse_id(const char *hex, unsigned char *id)
{
    int good = strlen(hex) == 2 * MPSHM_ID_SIZE;

    for (int i = 0; good && i < MPSHM_ID_SIZE; i++) {
        unsigned byte;
        good = sscanf(hex + 2 * i, "%2x", &byte) == 1;
        id[i] = (unsigned char)byte;
    }
    return good;
}
