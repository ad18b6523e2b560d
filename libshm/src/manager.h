/* What the manager is made of: keeper.c looks after arenas and slots, serve.c answers clients,
 * manager.c begins, loops and leaves. */
#ifndef MPSHM_MANAGER_H
#define MPSHM_MANAGER_H

#include <poll.h>

#include "internal.h"

enum {
    CLIENTS = 2 * MPSHM__SLOTS, /* some without a slot */
    TICK_MS = 100,              /* while there is something to look after */
    LISTENER = 0,
    EMPTY = 1,
    FOLDER = 2,
    FIRST = 3,
};

struct manager {
    struct mpshm__tree tree; /* the same view that a client has, without a slot */
    struct pollfd fds[FIRST + CLIENTS];
    int slot_of[FIRST + CLIENTS]; /* of a client, or -1 */
    int top;
    /* Slots whose connection is closed while their process lives: it closed a descriptor that was
     * not its own to close, or the manager was killed and it has not been back yet. */
    unsigned char watched[MPSHM__SLOTS];
    int watching;
    int orphans;   /* arenas without an owner */
    int folder_fd; /* locked: see rendezvous.c */
    uint64_t socket_inode;
    int broken;          /* the folder could not be made again yet */
    int spare;           /* a descriptor for refusing those for whom there is none */
    int pause_admitting; /* until the next tick */
    int refused;         /* somebody is in the tree after all: wait again, a tick later */
};

/* ---- keeper.c ---- */

/* Take over the descriptor of the arena in row `i`. */
int mpshm__keeper_map(struct manager *m, uint32_t i, int fd);
/* ... and what happened while it was out of reach. */
void mpshm__keeper_catch_up(struct manager *m, uint32_t i);
void mpshm__keeper_forget(struct manager *m, uint32_t i);
void mpshm__keeper_reclaim(struct manager *m);
int mpshm__keeper_is_alive(const struct manager *m, int slot);
int mpshm__keeper_is_attached(const struct manager *m, int slot);
void mpshm__keeper_detach(struct manager *m, int slot);
void mpshm__keeper_watch(struct manager *m, int slot);
void mpshm__keeper_unwatch(struct manager *m, int slot);
int mpshm__keeper_expects(const struct manager *m);
void mpshm__keeper_discover(struct manager *m);
void mpshm__keeper_look(struct manager *m);
void mpshm__keeper_sweep(struct manager *m, int slot);
/* A predecessor was killed: find again what the control file speaks of. */
void mpshm__keeper_resume(struct manager *m);

/* ---- serve.c ---- */

void mpshm__admit(struct manager *m);
/* One more connection: its index, or -EUSERS. Takes `sock` over. */
int mpshm__take_in(struct manager *m, int sock);
/* One frame of connection `c`: 0 to keep it, otherwise it is closed. */
int mpshm__serve(struct manager *m, int c);
void mpshm__lost(struct manager *m, int c);

/* ---- rendezvous.c: the folder and the socket where newcomers find the manager ---- */

/* Watch them from now on. */
void mpshm__watch_folder(struct manager *m);
/* Make again what was removed, and listen there. */
void mpshm__heal(struct manager *m);
/* Something has happened in the folder. */
void mpshm__folder_changed(struct manager *m);
/* Tell cleaners of old files that these are in use. */
void mpshm__touch_folder(const struct manager *m);

#endif
