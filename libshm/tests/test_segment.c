/* Segments under both strategies: zeroed, met elsewhere, counted, closed, and refused when not whole. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "check.h"
#include "mpshm.h"

static const int STRATEGIES[] = {MPSHM_FILE_DESCRIPTOR, MPSHM_FILE_SYSTEM};

static mpshm_segment *make(int strategy, uint64_t nbytes)
{
    mpshm_segment *s = NULL;

    CHECK_EQ(mpshm_segment_create(strategy, nbytes, &s), 0);
    return s;
}

static mpshm_segment *meet(mpshm_segment *s)
{
    mpshm_segment *other = NULL;

    if (mpshm_segment_fd(s) >= 0)
        CHECK_EQ(mpshm_segment_open_fd(mpshm_segment_fd(s), &other), 0);
    else
        CHECK_EQ(mpshm_segment_open_name(mpshm_segment_name(s), &other), 0);
    return other;
}

static int name_exists(const char *name)
{
    char path[128];

    snprintf(path, sizeof(path), "/dev/shm%s", name);
    return access(path, F_OK) == 0;
}

static void two_mappings_are_one_memory(int strategy)
{
    mpshm_segment *a = make(strategy, 100000), *b = meet(a);
    unsigned char *x = mpshm_segment_data(a), *y = mpshm_segment_data(b);

    CHECK(x != y);
    for (int i = 0; i < 100000; i++)
        CHECK_EQ(x[i], 0);
    x[99999] = 7;
    CHECK_EQ(y[99999], 7);
    CHECK_EQ(mpshm_segment_nbytes(b), 100000);
    CHECK(memcmp(mpshm_segment_id(a), mpshm_segment_id(b), MPSHM_ID_SIZE) == 0);
    mpshm_segment_close(b);
    CHECK_EQ(mpshm_segment_release(a), 0);
    mpshm_segment_close(a);
}

static void no_bytes_is_a_segment_too(int strategy)
{
    mpshm_segment *a = make(strategy, 0);

    CHECK_EQ(mpshm_segment_nbytes(a), 0);
    mpshm_segment_release(a);
    mpshm_segment_close(a);
    mpshm_segment_close(NULL);
}

static void absurd_sizes_are_refused_and_leave_nothing(int strategy)
{
    mpshm_segment *a = NULL;
    int before = open_descriptors();

    for (int bits = 50; bits < 64; bits++) {
        int err = mpshm_segment_create(strategy, (uint64_t)1 << bits, &a);
        CHECK(err == -ENOMEM || err == -ENOSPC || err == -EFBIG);
    }
    CHECK(a == NULL);
    CHECK_EQ(open_descriptors(), before);
}

static void the_last_claim_removes_the_name(void)
{
    mpshm_segment *a = make(MPSHM_FILE_SYSTEM, 10), *b, *c = NULL;
    char name[MPSHM_NAME_SIZE];

    memcpy(name, mpshm_segment_name(a), sizeof(name));
    b = meet(a);
    CHECK_EQ(mpshm_segment_claim(b), 0);
    CHECK_EQ(mpshm_segment_release(a), 0);
    CHECK(name_exists(name));
    mpshm_segment_close(a);
    CHECK_EQ(mpshm_segment_release(b), 0);
    CHECK(!name_exists(name));
    CHECK_EQ(mpshm_segment_claim(b), -ESTALE);
    CHECK_EQ(mpshm_segment_release(b), -ESTALE);
    ((char *)mpshm_segment_data(b))[0] = 1; /* still mapped */
    mpshm_segment_close(b);
    CHECK_EQ(mpshm_segment_open_name(name, &c), -ENOENT);
}

static void names_are_random_and_private(void)
{
    mpshm_segment *a = make(MPSHM_FILE_SYSTEM, 1), *b = make(MPSHM_FILE_SYSTEM, 1);
    struct stat st;
    char path[128];

    CHECK(strcmp(mpshm_segment_name(a), mpshm_segment_name(b)) != 0);
    CHECK_EQ(strlen(mpshm_segment_name(a)), 7 + 32);
    snprintf(path, sizeof(path), "/dev/shm%s", mpshm_segment_name(a));
    CHECK(stat(path, &st) == 0);
    CHECK_EQ(st.st_mode & 0777, 0600);
    mpshm_segment_release(a), mpshm_segment_release(b);
    mpshm_segment_close(a), mpshm_segment_close(b);
}

static void a_memfd_cannot_be_cut(void)
{
    mpshm_segment *a = make(MPSHM_FILE_DESCRIPTOR, 5000);

    CHECK_EQ(ftruncate(mpshm_segment_fd(a), 0), -1);
    CHECK_EQ(errno, EPERM);
    CHECK_EQ(ftruncate(mpshm_segment_fd(a), 1 << 20), -1);
    CHECK(fcntl(mpshm_segment_fd(a), F_GETFD) & FD_CLOEXEC);
    mpshm_segment_close(a);
}

static void what_is_not_ours_is_refused(void)
{
    mpshm_segment *s = NULL;
    int before = open_descriptors();
    int fd = memfd_create("foreign", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK_EQ(mpshm_segment_open_fd(0x7fff, &s), -EBADMSG);
    CHECK_EQ(mpshm_segment_open_fd(fd, &s), -EBADMSG); /* could be cut under us */
    CHECK(ftruncate(fd, 8192) == 0);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    CHECK_EQ(mpshm_segment_open_fd(fd, &s), -EBADMSG); /* sealed, but it says nothing of us */
    close(fd);
    CHECK_EQ(mpshm_segment_open_name("/somebody-else", &s), -EBADMSG);
    CHECK_EQ(mpshm_segment_open_name("/mpshm-../../etc/passwd", &s), -EINVAL);
    CHECK_EQ(mpshm_segment_open_name("/mpshm-0123456789012345678901234567890123456789", &s), -ENOENT);
    CHECK_EQ(mpshm_segment_open_name("/mpshm-01234567890123456789012345678901234567890", &s),
             -EBADMSG);
    CHECK_EQ(mpshm_segment_create(99, 1, &s), -EINVAL);
    CHECK(s == NULL);
    CHECK_EQ(open_descriptors(), before);
}

int main(void)
{
    for (int i = 0; i < 2; i++) {
        two_mappings_are_one_memory(STRATEGIES[i]);
        no_bytes_is_a_segment_too(STRATEGIES[i]);
        absurd_sizes_are_refused_and_leave_nothing(STRATEGIES[i]);
    }
    the_last_claim_removes_the_name();
    names_are_random_and_private();
    a_memfd_cannot_be_cut();
    what_is_not_ours_is_refused();
    return 0;
}
