/* The system call that has failed last in this thread, for error messages. */
#ifndef MPSHM_FAILED_CALL_H
#define MPSHM_FAILED_CALL_H

/* Note the name, a literal, of the call that has just set errno. Returns -errno. */
int mpshm__failed(const char *call);

#endif
