/* The parts of the manager. reaper.c: segments, slots and deaths. reclaim_segment.c: segments
 * without an owner. cache_limit.c: the size of the cache. expire_messages.c: messages that nobody
 * reads. folder_watch.c: folder and socket. serve.c: the clients' questions. manager.c: start, loop
 * and end. */
#ifndef MPSHM_MANAGER_H
#define MPSHM_MANAGER_H

#include <poll.h>

#include "layout/segment_file.h"
#include "session/session.h"
#include "session/wire.h"

enum {
    CLIENTS = 2 * MPSHM__SLOTS, /* some without a slot */
    TICK_MS = 100,              /* while anything is pending */
    LISTENER = 0,
    FOR_OTHERS = 1, /* a listener for processes that are another user now */
    EMPTY = 2,
    FOLDER = 3,
    CACHE = 4,
    FIRST = 5,
};

/* The slot of a connection from which its process has not shown yet that it is in the session. */
enum { STRANGER = -2 };

struct manager {
    struct mpshm__session session; /* as a client has it, without a slot */
    struct pollfd fds[FIRST + CLIENTS];
    int slot_of[FIRST + CLIENTS]; /* of a client, -1 or STRANGER */
    int top;
    /* Slots whose connection is closed while their process lives: the program has closed the
     * descriptor, or the last manager was killed and the process has not connected again. */
    unsigned char watched[MPSHM__SLOTS];
    int watching;
    int orphans;   /* segments without an owner */
    int folder_fd; /* locked: see folder_watch.c */
    uint64_t socket_inode;
    int broken;                 /* the folder could not be created again yet */
    int spare;                  /* a descriptor for refusing clients when there is no other */
    int pause_admitting;        /* until the next tick */
    uint64_t only_parent_since; /* since when only the parent is left; 0: not so */
    int was_not_empty; /* a process is in the session after all: wait again at the next tick */
    /* ---- reclaim_segment.c ---- */
    uint64_t poll_at;                /* when to poll the orphans again */
    uint64_t since[MPSHM__SEGMENTS]; /* orphaned, or handed to an adopter; 0 for neither */
    uint64_t left_cached[MPSHM__SEGMENTS];
    uint32_t live_index[MPSHM__SEGMENTS]; /* a block that was live at the last poll */
    struct mpshm__cache_limit *cache;     /* cache_limit.c */
    uint64_t messages_at;                 /* when it looked for expired messages last */
};

/* ---- reaper.c ---- */

/* Take over the descriptor of the segment with index `i`. */
int mpshm__reaper_map_segment(struct manager *m, uint32_t i, int fd);
/* Process the deaths that happened while a segment was out of reach. */
void mpshm__reaper_catch_up(struct manager *m, uint32_t i);
int mpshm__reaper_is_alive(const struct manager *m, int slot);
int mpshm__reaper_is_attached(const struct manager *m, int slot);
void mpshm__reaper_detach(struct manager *m, int slot);
void mpshm__reaper_watch(struct manager *m, int slot);
void mpshm__reaper_unwatch(struct manager *m, int slot);
int mpshm__reaper_has_pending(const struct manager *m);
void mpshm__reaper_discover(struct manager *m);
/* Clear the references of the dead among the watched. */
void mpshm__reaper_poll(struct manager *m);
/* After the former manager was killed: find all that the control file lists. */
void mpshm__reaper_resume(struct manager *m);

/* ---- reclaim_segment.c ---- */

/* Forget the segment with index `i`, and remove its name. */
void mpshm__drop_segment(struct manager *m, uint32_t i);
/* The segment with index `i` has lost its owner. */
void mpshm__orphan_begin(struct manager *m, uint32_t i);
void mpshm__orphans_resume(struct manager *m);
/* Poll the orphans when it is time: purge and drop. */
void mpshm__orphans_reclaim(struct manager *m);
/* Milliseconds until it is time; -1 when there are no orphans. */
int mpshm__orphans_timeout(const struct manager *m);
/* The client of connection `c` asks for an orphan: 0 and its descriptor, or -ENOENT. */
int mpshm__orphan_hand_over(struct manager *m, int c, struct mpshm__frame *f, int *fd);

/* ---- cache_limit.c ---- */

/* Start the thread that waits until memory is cached, and poll once: 0 or -errno. */
int mpshm__cache_limit_begin(struct manager *m);
/* Becomes readable when a process caches memory while the manager sleeps. */
int mpshm__cache_limit_fd(const struct manager *m);
/* Poll when it is time: set the limit, and purge the excess. */
void mpshm__cache_limit_poll(struct manager *m);
/* Milliseconds until it is time; -1 while nothing is cached. */
int mpshm__cache_limit_timeout(const struct manager *m);

/* ---- expire_messages.c ---- */

/* Free the blocks whose messages have expired, when it is time. */
void mpshm__messages_expire(struct manager *m);
/* Milliseconds until it is time; -1 while no process uses timeouts. */
int mpshm__messages_timeout(const struct manager *m);

/* ---- serve.c ---- */

void mpshm__client_accept(struct manager *m, int listener);
/* Close the connections of strangers. */
void mpshm__strangers_drop(struct manager *m);
/* Add a connection: its index, or -EUSERS. Takes `sock` over. */
int mpshm__client_add(struct manager *m, int sock);
/* Serve one frame of connection `c`: 0, or an error after which it is closed. */
int mpshm__client_serve(struct manager *m, int c);
void mpshm__client_disconnected(struct manager *m, int c);

/* ---- folder_watch.c ---- */

/* Watch folder and socket from now on. */
void mpshm__folder_watch(struct manager *m);
/* Create them again if they were removed, and listen there. */
void mpshm__folder_repair(struct manager *m);
/* The folder has changed. */
void mpshm__folder_changed(struct manager *m);
/* Touch the files, so that cleaners of old files leave them. */
void mpshm__folder_touch(const struct manager *m);

#endif
