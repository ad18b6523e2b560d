/* A session as one process sees it: its slot, its manager and the segments that it has attached.
 *
 * Every function of this folder needs the process lock, except those of process_slot.h and wire.h.
 */
#ifndef MPSHM_SESSION_H
#define MPSHM_SESSION_H

#include "base/descriptor.h"
#include "layout/control_file.h"
#include "mpshm.h"

struct mpshm__segment;

struct mpshm__session {
    unsigned char id[MPSHM_ID_SIZE];
    struct mpshm__fd control_fd;
    struct mpshm__control *control;
    uint32_t user;         /* the owner of the control file */
    struct mpshm__fd sock; /* to the manager */
    int introduced;        /* the manager knows which slot this connection belongs to */
    int slot;              /* of this process, or -1 */
    struct mpshm__segment *segments[MPSHM__SEGMENTS];
    uint32_t segment_top;       /* all entries from here on are NULL */
    struct mpshm__segment *own; /* the list of own segments, the one with space first */
    int foreign_fds;            /* open descriptors of foreign segments */
    uint64_t stuck_until;       /* no manager was reached: try again at this time */
    int stuck_for_s;            /* the pause before that; 0 after an answer */
    int stuck_error;            /* why, as an errno */
    int is_listed;              /* attached for a listing of all sessions */
};

enum { MPSHM__SESSIONS = 16 };
/* The attached sessions. The own session is the first. */
extern struct mpshm__session *mpshm__sessions[MPSHM__SESSIONS];

/* Find or attach the session `id`. The own session is created if it does not exist; for any other
 * that is -ESTALE. */
int mpshm__session_attach(const unsigned char *id, int is_own, struct mpshm__session **out);
/* Attach the own session by descriptors of its control file and of a connection. Each may be -1.
 * Takes both over. */
int mpshm__session_attach_inherited(const unsigned char *id, int control_fd, int sock);
/* In a forked child: detach from the session, which this process has no block of. The own session
 * is attached again by these descriptors when it is needed; for another session they are closed. */
void mpshm__session_detach_in_child(int at, int control_fd, int sock);
/* In a forked child that has detached from its own session: attach it again, if it has not. */
void mpshm__session_attach_detached(void);
int mpshm__session_is_attached(const unsigned char *id);
/* Detach a foreign session of which this process has no block. */
void mpshm__session_detach_idle(struct mpshm__session *session);
/* The number of blocks of the session that this process has references to. */
uint64_t mpshm__session_retained(const struct mpshm__session *session);

/* ---- segment_table.c ---- */

/* Register a new own segment with the manager. */
int mpshm__segment_register(struct mpshm__session *session, struct mpshm__segment *segment);
/* Find or attach the segment of entry `index` whose nonce begins with `nonce0`. To attach needs the
 * manager or the owner, but no slot. */
int mpshm__segment_attach(struct mpshm__session *session, uint32_t index, uint64_t nonce0,
                          struct mpshm__segment **out);
/* The same segment's descriptor, for a process that cannot map it: the caller closes it. */
int mpshm__segment_open(struct mpshm__session *session, uint32_t index, uint64_t nonce0);
int mpshm__segment_is_attached(const struct mpshm__session *session, uint32_t index,
                               uint64_t nonce0);
/* Enter a mapped segment in the table. -ESTALE when blocks of a former segment are still in use. */
int mpshm__segment_insert(struct mpshm__session *session, struct mpshm__segment *segment);
/* Unmap foreign segments that no longer exist and of which this process has no block. */
void mpshm__drop_stale_segments(struct mpshm__session *session);

#endif
