/* Diagnostics: list segments, sessions and processes. */
#ifndef MPSHM_PUBLIC_DIAGNOSTICS_H
#define MPSHM_PUBLIC_DIAGNOSTICS_H
#include <stdint.h>

/* One segment of shared memory, in which its owner allocates, and the processes that have
 * references to its blocks. */
typedef struct {
    unsigned char session[16];
    uint32_t index;
    int strategy;
    int owner_pid; /* 0: the owner has died, and other processes still use its blocks */
    uint64_t age_ns;
    uint64_t live_blocks;
    uint64_t live_bytes;
    uint64_t in_flight_bytes;
    uint64_t cached_bytes;
    int holders;
    int holder_pids[1024];
} mpshm_info;

/* List the segments of every session of this user, in at most `room` entries. Returns the number of
 * segments. This process attaches each session for the duration of the call. */
int mpshm_list(mpshm_info *entries, int room);

/* One session of this user. */
typedef struct {
    unsigned char session[16];
    int processes;
    uint32_t manager_starts; /* 1 until a manager was killed or left, and another was needed */
    uint64_t cached_bytes;   /* free and dirty, in all segments */
    uint64_t cache_limit;
} mpshm_session_info;

/* One process of a session, or one that has left and whose messages are still in flight. */
typedef struct {
    unsigned char session[16];
    int pid;
    int attached; /* 0: it has left */
    uint64_t held_blocks;
    uint64_t held_bytes;   /* a block that several processes hold counts for each of them */
    uint64_t cached_bytes; /* free and dirty, in its segments */
    uint64_t in_flight_blocks;
    uint64_t in_flight_bytes; /* in blocks that it sent and no process has received */
    uint64_t oldest_ns;       /* since it sent the oldest of them */
    uint64_t oldest_bytes;
    char oldest_site[124]; /* see mpshm_set_site; "" when unknown */
} mpshm_process_info;

/* List the sessions of this user and their processes, each in at most `room` entries, and set the
 * counts to the numbers that there are. This process attaches each session for the duration of the
 * call and writes nothing to it. A session in which nothing was ever shared is left out. */
void mpshm_list_processes(mpshm_session_info *sessions, int session_room, int *session_count,
                          mpshm_process_info *processes, int process_room, int *process_count);

enum { MPSHM_SITE_SIZE = 124 };

/* Say which line of source the calling thread sends from, until the next call: mpshm_list_processes
 * shows it for the oldest message of a process. It keeps the first 123 bytes; NULL or "" ends it. A
 * session remembers 256 of them, and ignores the others. */
void mpshm_set_site(const char *text);

#endif
