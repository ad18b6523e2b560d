/* The one lock that guards the private state of this process: see process_lock.c. */
#ifndef MPSHM_PROCESS_LOCK_H
#define MPSHM_PROCESS_LOCK_H

void mpshm__lock(void);
int mpshm__try_lock(void); /* 1 when the caller has the lock */
void mpshm__unlock(void);
/* Wait for the lock unless `flags` contain MPSHM_NOWAIT. 1 when the caller has the lock. */
int mpshm__lock_by_flags(int flags);

/* Work that must be done under the lock. */
struct mpshm__deferred {
    struct mpshm__deferred *next;
    void (*run)(struct mpshm__deferred *);
};
/* Run it when the lock becomes free, in the thread that has it, without waiting. */
void mpshm__lock_defer(struct mpshm__deferred *work);

/* After fork(2), in the child of a thread that had the lock: it is free again. */
void mpshm__reset_lock_in_child(void);

#endif
