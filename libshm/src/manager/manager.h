/* What the manager is made of: keeper.c looks after segments and slots, orphan.c after those that
 * have lost their owner, cache.c after what is kept warm; serve.c answers clients, manager.c
 * begins, loops and leaves. */
#ifndef MPSHM_MANAGER_H
#define MPSHM_MANAGER_H

#include <poll.h>

#include "layout/segment_file.h"
#include "session/session.h"
#include "session/wire.h"

enum {
    CLIENTS = 2 * MPSHM__SLOTS, /* some without a slot */
    TICK_MS = 100,              /* while there is something to look after */
    LISTENER = 0,
    EMPTY = 1,
    FOLDER = 2,
    CACHE = 3,
    FIRST = 4,
};

struct manager {
    struct mpshm__session session; /* the same view that a client has, without a slot */
    struct pollfd fds[FIRST + CLIENTS];
    int slot_of[FIRST + CLIENTS]; /* of a client, or -1 */
    int top;
    /* Slots whose connection is closed while their process lives: it closed a descriptor that was
     * not its own to close, or the manager was killed and it has not been back yet. */
    unsigned char watched[MPSHM__SLOTS];
    int watching;
    int orphans;   /* segments without an owner */
    int folder_fd; /* locked: see rendezvous.c */
    uint64_t socket_inode;
    int broken;                 /* the folder could not be made again yet */
    int spare;                  /* a descriptor for refusing those for whom there is none */
    int pause_admitting;        /* until the next tick */
    uint64_t only_parent_since; /* nobody but the parent is left; 0: not so */
    int refused;                /* somebody is in the session after all: wait again, a tick later */
    /* ---- orphan.c ---- */
    uint64_t poll_at;                /* when orphans are looked at again */
    uint64_t since[MPSHM__SEGMENTS]; /* orphaned, or handed to an adopter; 0 for neither */
    uint64_t left_cached[MPSHM__SEGMENTS];
    uint32_t live_index[MPSHM__SEGMENTS]; /* a block that was in use at the last look */
    struct mpshm__cache_limit *cache;     /* cache.c */
};

/* ---- keeper.c ---- */

/* Take over the descriptor of the segment in entry `i`. */
int mpshm__reaper_map_segment(struct manager *m, uint32_t i, int fd);
/* ... and what happened while it was out of reach. */
void mpshm__reaper_catch_up(struct manager *m, uint32_t i);
void mpshm__reaper_drop_segment(struct manager *m, uint32_t i);
int mpshm__reaper_is_alive(const struct manager *m, int slot);
int mpshm__reaper_is_attached(const struct manager *m, int slot);
void mpshm__reaper_detach(struct manager *m, int slot);
void mpshm__reaper_watch(struct manager *m, int slot);
void mpshm__reaper_unwatch(struct manager *m, int slot);
int mpshm__reaper_has_pending(const struct manager *m);
void mpshm__reaper_discover(struct manager *m);
void mpshm__reaper_poll(struct manager *m);
void mpshm__reaper_reap(struct manager *m, int slot);
/* A predecessor was killed: find again what the control file speaks of. */
void mpshm__reaper_resume(struct manager *m);

/* ---- orphan.c ---- */

/* Is this the one manager that hands out and purges? */
/* The segment in entry `i` has lost its owner. */
void mpshm__orphan_begin(struct manager *m, uint32_t i);
void mpshm__orphans_resume(struct manager *m);
/* Look at orphans, when it is time: purge and drop. */
void mpshm__orphans_reclaim(struct manager *m);
/* Milliseconds until it is time; -1 when there are none. */
int mpshm__orphans_timeout(const struct manager *m);
/* The client of connection `c` asks for one. 0 and the descriptor, or -ENOENT. */
int mpshm__orphan_hand_over(struct manager *m, int c, struct mpshm__frame *f, int *fd);

/* ---- cache.c ---- */

/* Begin to look after what is cached: 0 or -errno. */
int mpshm__cache_limit_begin(struct manager *m);
/* Becomes readable when somebody fills a cache that nobody looks after. */
int mpshm__cache_limit_fd(const struct manager *m);
/* Look, when it is time: set the limit, and give back what cannot be kept. */
void mpshm__cache_limit_poll(struct manager *m);
/* Milliseconds until it is time; -1 when nothing is cached. */
int mpshm__cache_limit_timeout(const struct manager *m);

/* ---- serve.c ---- */

void mpshm__client_accept(struct manager *m);
/* One more connection: its index, or -EUSERS. Takes `sock` over. */
int mpshm__client_add(struct manager *m, int sock);
/* One frame of connection `c`: 0 to keep it, otherwise it is closed. */
int mpshm__client_serve(struct manager *m, int c);
void mpshm__client_disconnected(struct manager *m, int c);

/* ---- rendezvous.c: the folder and the socket where newcomers find the manager ---- */

/* Watch them from now on. */
void mpshm__rendezvous_watch(struct manager *m);
/* Make again what was removed, and listen there. */
void mpshm__rendezvous_repair(struct manager *m);
/* Something has happened in the folder. */
void mpshm__rendezvous_changed(struct manager *m);
/* Tell cleaners of old files that these are in use. */
void mpshm__rendezvous_touch(const struct manager *m);

#endif
