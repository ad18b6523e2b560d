/* Sessions: attach one, pass it to a child, serve it. */
#ifndef MPSHM_PUBLIC_SESSION_H
#define MPSHM_PUBLIC_SESSION_H

/* The own session, in which this process allocates: MPSHM_ID_SIZE random bytes, chosen at the first
 * call. A parent passes them to the children that it starts by exec; a forked child inherits them.
 */
int mpshm_own_session(unsigned char *id);

/* Use the parent's session. -EBUSY, and no change, when this process has another one already. */
int mpshm_set_own_session(const unsigned char *id);

/* Attach the own session now, so that messages sent in it are kept until this process has gone.
 * That takes a file and a lock; no manager is started. */
int mpshm_attach(void);

/* Open two descriptors with which a child that is started by exec attaches this process's session
 * without a path, so that it succeeds after the folder was removed or the user has changed. fds[0]
 * is the control file, with an open file description of the child's own; fds[1] is a connection to
 * the manager. Each is -1 if it is not available. The caller closes both when the child has
 * them. */
int mpshm_open_descriptors_for_child(int fds[2]);

/* In that child, before any other call: attach session `id` with both descriptors, which are taken
 * over. -EBUSY when this process has another session already (both are also closed then).
 */
int mpshm_attach_by_descriptors(const unsigned char *id, const int fds[2]);

/* After -EPROTO from any call: the version of the library that created the session's files, "" when
 * it is too old to say. Two versions do not share; this library's is mpshm_version(). */
const char *mpshm_refused_version(void);

/* After -`error` from any call: the system call of this thread that has failed with it, "" when it
 * is not known, as where the manager has answered so. A static string. */
const char *mpshm_failed_call(int error);

/* Set the path of the shm-manager executable. Call it before any call that needs a manager. */
int mpshm_set_manager(const char *path);

/* The manager's main loop, for its executable and for tests. It serves `listener` (a listening Unix
 * socket of type SOCK_SEQPACKET) for the session with this folder, until no process is in it.
 * `control` is a descriptor of the session's control file, or -1 for the file in the folder. Both
 * are taken over. */
int mpshm_manager_run(int listener, int control, const char *folder);

#endif
