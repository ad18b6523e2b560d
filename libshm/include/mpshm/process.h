/* Process control: the death of the parent, names of threads. */
#ifndef MPSHM_PUBLIC_PROCESS_H
#define MPSHM_PUBLIC_PROCESS_H

/* Ask the kernel to send `signum` to this process when its parent dies; 0 cancels the request.
 * `parent` is the pid that the caller believes to be its parent. If that process has died already,
 * the call raises the signal at once, so no orphan is missed. Pass 0 for the present parent.
 * "Parent" means the *thread* that forked: the signal also comes when that thread ends.
 * -EINVAL for a signal that does not exist. */
int mpshm_set_pdeathsig(int signum, int parent);

enum { MPSHM_THREAD_NAME_SIZE = 16 };

/* Name the calling thread for ps and debuggers. The kernel keeps 15 bytes: a longer name is cut
 * there, between two UTF-8 characters. */
int mpshm_set_thread_name(const char *name);

/* Read the calling thread's name into `name`, MPSHM_THREAD_NAME_SIZE bytes. */
int mpshm_get_thread_name(char *name);

#endif
