/* Descriptors that are identified by the file they refer to and not by their number.
 *
 * Note [A number is not a descriptor]
 *   A daemon closes every descriptor that it finds, libraries close ranges of them, and the next
 *   open() gets the same number. Code that goes on using the number then writes into a foreign
 *   socket, or closes it. So device and inode are stored together with the number and compared
 *   before each use and each close. Where they differ, the number is dropped and never touched.
 *
 *   A program without standard streams gives their numbers to whatever is opened next, and libraries
 *   of C write to them without a look. So no descriptor here keeps one of these three numbers. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"

enum { AFTER_STREAMS = STDERR_FILENO + 1 };

static int above_streams(int number)
{
    int higher = number < AFTER_STREAMS ? fcntl(number, F_DUPFD_CLOEXEC, AFTER_STREAMS) : -1;

    if (higher < 0) /* also if there is none left */
        return number;
    close(number);
    return higher;
}

void mpshm__fd_set(struct mpshm__fd *fd, int number)
{
    struct stat st;

    *fd = MPSHM__NO_FD;
    if (number < 0)
        return;
    number = above_streams(number);
    if (fstat(number, &st) < 0)
        return;
    *fd = (struct mpshm__fd){.number = number, .device = st.st_dev, .inode = st.st_ino};
}

int mpshm__fd_is(const struct mpshm__fd *fd, int number)
{
    struct stat st;

    return number >= 0 && fstat(number, &st) == 0 && st.st_dev == fd->device &&
           st.st_ino == fd->inode;
}

int mpshm__fd_get(struct mpshm__fd *fd)
{
    if (fd->number >= 0 && !mpshm__fd_is(fd, fd->number))
        fd->number = -1;
    return fd->number;
}

void mpshm__fd_close(struct mpshm__fd *fd)
{
    int number = mpshm__fd_get(fd);

    if (number >= 0)
        close(number);
    *fd = MPSHM__NO_FD;
}

/* Note [Descriptors in reserve]
 *   A process that has used up its descriptors must still be able to receive messages. That takes
 *   one descriptor for the connection and one for the segment, for a moment. The reserve holds
 *   two, duplicates of a descriptor that is open anyway, created while descriptors were available.
 */
enum { RESERVED = 2 };
static struct mpshm__fd reserve[RESERVED] = {MPSHM__NO_FD, MPSHM__NO_FD};

void mpshm__fd_reserve(int like)
{
    for (int i = 0; i < RESERVED && like >= 0; i++)
        if (mpshm__fd_get(&reserve[i]) < 0)
            mpshm__fd_set(&reserve[i], fcntl(like, F_DUPFD_CLOEXEC, 0));
}

int mpshm__fd_use_reserve(int err)
{
    if (err != -EMFILE)
        return 0;
    for (int i = 0; i < RESERVED; i++)
        if (mpshm__fd_get(&reserve[i]) >= 0) {
            mpshm__fd_close(&reserve[i]);
            return 1;
        }
    return 0;
}

int mpshm__fd_reserved(void)
{
    int count = 0;

    for (int i = 0; i < RESERVED; i++)
        count += mpshm__fd_get(&reserve[i]) >= 0;
    return count;
}

void mpshm__fd_drop_reserve(void)
{
    for (int i = 0; i < RESERVED; i++)
        mpshm__fd_close(&reserve[i]);
}
