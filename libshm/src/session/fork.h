/* Work around a fork: see fork.c. */
#ifndef MPSHM_FORK_H
#define MPSHM_FORK_H

/* The work of an upper floor around a fork. It runs with the process lock held. */
struct mpshm__fork_hook {
    void (*before)(void);
    void (*after)(int in_child);
};
/* Register the hook. There is room for one, the heap's. */
void mpshm__set_fork_hook(struct mpshm__fork_hook hook);
/* Does nothing. A call makes the linker take fork.c, which has a constructor, from the archive. */
void mpshm__fork_handlers(void);

#endif
