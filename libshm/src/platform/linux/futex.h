/* Sleep until another process changes a word of shared memory. */
#ifndef MPSHM_LINUX_FUTEX_H
#define MPSHM_LINUX_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Sleep while `*word` is `value`, until mpshm__futex_wake or a signal. */
void mpshm__futex_wait(_Atomic uint32_t *word, uint32_t value);
/* The same for at most `ns` nanoseconds: 0, -EAGAIN when the word has another value already,
 * -ETIMEDOUT, or -EINTR. */
int mpshm__futex_wait_for(_Atomic uint32_t *word, uint32_t value, uint64_t ns);
/* Wake every sleeper. */
void mpshm__futex_wake(_Atomic uint32_t *word);
/* Wake one sleeper, if there is any. */
void mpshm__futex_wake_one(_Atomic uint32_t *word);

#endif
