/* The memory of this machine. */
#ifndef MPSHM_LINUX_MEMORY_H
#define MPSHM_LINUX_MEMORY_H

#include <stdint.h>

/* The size of the main memory. */
uint64_t mpshm__memory_bytes(void);
/* The memory that programs can still get without swapping; 0 when the kernel does not tell. */
uint64_t mpshm__memory_available(void);
/* 1 when vm.overcommit_memory is 2. */
int mpshm__strict_overcommit(void);

#endif
