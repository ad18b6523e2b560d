/* Messages that wait in a channel, counted by a process that has no end of it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>

#include "channel.h"
#include "channel/channel.h"

enum { FOREVER = -1 };

/* Count as another process does, which has the memory opened for reading only. */
static int unread(const mpshm_channel *end, mpshm_unread *out)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", mpshm_channel_object((mpshm_channel *)end));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    int rc = mpshm_channel_unread(fd, out);
    close(fd);
    return rc;
}

static void test_they_are_counted(void)
{
    struct line line = line_open(0);
    mpshm_unread found[2];

    for (uint64_t round = 0; round < 300; round++) { /* so that the counts wrap around the ring */
        for (uint64_t i = 0; i < 3; i++)
            CHECK_EQ(send_number(&line, i, 8 + round * 7 % 2000, FOREVER), 0);
        CHECK_EQ(unread(line.reader, found), 1);
        CHECK_EQ(found[0].messages, 3);
        CHECK(found[0].nbytes >= 3 * (16 + round * 7 % 2000));
        for (int i = 2; i >= 0; i--) {
            CHECK_EQ(receive_number(&line, FOREVER), 2 - i);
            CHECK_EQ(unread(line.writer, found), 1);
            CHECK_EQ(found[0].messages, (uint64_t)i);
        }
        CHECK_EQ(found[0].nbytes, 0);
    }
    line_close(&line);
}

static void test_each_direction_and_what_is_no_channel(void)
{
    struct line line = line_open(1);
    mpshm_unread found[2];
    int other = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK_EQ(send_number(&line, 1, 8, FOREVER), 0);
    CHECK_EQ(unread(line.reader, found), 2);
    CHECK_EQ(found[0].messages + 10 * found[1].messages, 1);
    /* A damaged ring is read to its end at most. */
    atomic_store(&line.writer->out.ring->tail, (uint64_t)1 << 60);
    CHECK_EQ(unread(line.reader, found), 2);
    CHECK_EQ(found[0].messages, 0);
    line_close(&line);

    CHECK_EQ(ftruncate(other, MPSHM__CHANNEL_HEADER + MPSHM__RING_BYTES), 0);
    CHECK_EQ(mpshm_channel_unread(other, found), -EBADMSG); /* it may shrink */
    CHECK_EQ(fcntl(other, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    CHECK_EQ(mpshm_channel_unread(other, found), -EPROTO);
    close(other);
}

int main(void)
{
    test_they_are_counted();
    test_each_direction_and_what_is_no_channel();
    return 0;
}
