/* Those who wait at a condition or a barrier: see wait_list.c. */
#ifndef MPSHM_WAIT_LIST_H
#define MPSHM_WAIT_LIST_H

#include "sync/word.h"

/* With the guard held: a new entry, or -EUSERS. */
int mpshm__wait_list_enter(struct mpshm__session *session, struct mpshm__wait_list *list);
/* With the guard held: wake the one that has waited longest and lives. 0 when nobody waits. */
int mpshm__wait_list_wake(struct mpshm__session *session, struct mpshm__wait_list *list);
/* With the guard held: wake all, the dead among them, with the new `state`: how many. */
int mpshm__wait_list_wake_all(struct mpshm__wait_list *list, uint32_t state);
/* With the guard held: free the entries of the dead. */
void mpshm__wait_list_reap(struct mpshm__session *session, struct mpshm__wait_list *list);
/* With the guard held: give the notification of each process that has died with it to the next that
 * was waiting at that time. */
void mpshm__wait_list_pass_on(struct mpshm__session *session, struct mpshm__wait_list *list);
/* 1 when a dead process has an entry in `state` with this ticket or a later one. */
int mpshm__wait_list_has_dead(struct mpshm__session *session, const struct mpshm__wait_list *list,
                              uint32_t state, uint64_t ticket);
/* How many wait. */
int mpshm__wait_list_count(const struct mpshm__wait_list *list);
/* By its owner: give the entry back in the state that it has. Returns that state. */
uint32_t mpshm__wait_list_leave(struct mpshm__wait_list *list, int i);

#endif
