/* Fuzz target: the manager. It survives any bytes that come over its socket or are written into
 * segments that were registered with it, and an honest client beside it notices nothing.
 *
 * An input is a sequence of steps: connect, close, send a valid frame that was distorted, of any
 * length, with any descriptors, send bytes, read answers, write into registered memory. The
 * manager runs in a thread of this process, so that sanitizers and coverage see it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "fuzz.h"
#include "base/clock.h"
#include "segment/memory_object.h"
#include "segment/segment.h"
#include "session/runtime_folder.h"
#include "session/session.h"
#include "session/process_slot.h"
#include "session/wire.h"
#include "neighbour.h"

enum {
    CONNECTIONS = 8,
    MOST_FDS = 6,
    ASK_EVERY = 256, /* inputs */
};

static struct sockaddr_un address = {.sun_family = AF_UNIX};
static unsigned char session_id[MPSHM_ID_SIZE];
static char folder[200];
static struct mpshm__segment *mine; /* the segment that was registered last */
static int neighbour_sock;
static int socks[CONNECTIONS];
static int slots[CONNECTIONS];

static void *manager_thread(void *listener)
{
    int rc = mpshm_manager_run((int)(intptr_t)listener, -1, folder);

    CHECK(!"the manager has left" && rc);
    return NULL;
}

/* A process for each connection: a slot that is locked through a description of its own. */
static void take_a_slot(int k)
{
    char path[300];
    int fd;

    snprintf(path, sizeof(path), "%s/control", folder);
    fd = open(path, O_RDWR | O_CLOEXEC);
    slots[k] = mpshm__take_slot(mpshm__sessions[0]->control, fd);
    CHECK(slots[k] >= 0);
}

static void prepare(void)
{
    static int done;
    pthread_t thread;
    pthread_attr_t attributes;

    if (done++)
        return;
    have_a_session();
    setenv("MPSHM_SEGMENT_BYTES", "2097152", 1);
    CHECK_EQ(mpshm_own_session(session_id), 0);
    CHECK_EQ(mpshm_attach(), 0);
    mpshm__session_path(session_id, "", folder, sizeof(folder));
    mpshm__session_path(session_id, "socket", address.sun_path, sizeof(address.sun_path));
    neighbour_sock = start_neighbour(); /* first: it must not inherit the listener */
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK_EQ(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    CHECK_EQ(listen(listener, 256), 0);
    for (int i = 0; i < CONNECTIONS; i++) {
        socks[i] = -1;
        take_a_slot(i);
    }
    /* The manager is a process, with a process's stack; a thread has 128 KiB with musl. */
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 8 << 20);
    CHECK_EQ(pthread_create(&thread, &attributes, manager_thread, (void *)(intptr_t)listener), 0);
    pthread_detach(thread);
    ask_neighbour(neighbour_sock);
}

/* ---- steps ---- */

static void shut(int k)
{
    if (socks[k] >= 0)
        close(socks[k]);
    socks[k] = -1;
}

static void dial(int k)
{
    struct timeval limit = {.tv_sec = 20};

    shut(k);
    socks[k] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(socks[k] >= 0);
    setsockopt(socks[k], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(socks[k], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    CHECK_EQ(connect(socks[k], (struct sockaddr *)&address, sizeof(address)), 0);
}

static void discard_mine(void)
{
    if (mine == NULL)
        return;
    if (mine->strategy == MPSHM_FILE_SYSTEM)
        mpshm__object_unlink(mine->nonce);
    mine->header->capacity = 1024; /* its tables may be damaged, and they tell how much to unmap */
    mpshm__segment_unmap(mine);
    mine = NULL;
}

/* Descriptors to send along: segments, files that look like one, and others. */
static int pick_fds(struct choices *c, int *fds)
{
    int p[2];

    switch (choose(c, 8)) {
    case 0:
        discard_mine();
        /* So small that the neighbour does not adopt the damaged segment. */
        CHECK_EQ(mpshm__segment_create(STRATEGIES[choose(c, 2)], 0, 1, session_id, NULL, &mine), 0);
        /* fall through */
    case 1:
        fds[0] = mine ? dup(mine->fd.number) : -1;
        return fds[0] >= 0;
    case 2:
        fds[0] = memfd_create("not sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CHECK_EQ(ftruncate(fds[0], choose(c, 4) * 4096), 0);
        return 1;
    case 3:
        fds[0] = mpshm__memfd_create(choose(c, 4) * 4096); /* sealed, and all zeroes */
        return 1;
    case 4:
        CHECK_EQ(pipe2(p, O_CLOEXEC), 0);
        close(p[1]);
        fds[0] = p[0];
        return 1;
    case 5:
        for (int i = 0; i < MOST_FDS; i++)
            fds[i] = open("/dev/null", O_RDWR | O_CLOEXEC);
        return 1 + (int)choose(c, MOST_FDS);
    default:
        return 0;
    }
}

static void send_with(int sock, const void *data, size_t size, int *fds, int count)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(MOST_FDS * sizeof(int))];
    } room = {0};
    struct iovec iov = {.iov_base = (void *)data, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (count > 0) {
        msg.msg_control = room.buf;
        msg.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(cmsg), fds, (size_t)count * sizeof(int));
    }
    if (sendmsg(sock, &msg, MSG_NOSIGNAL) >= 0)
        fuzzed++;
}

static void send_frame(struct choices *c, int k)
{
    static const uint16_t OPS[] = {
        MPSHM__HELLO,   MPSHM__HELLO,  MPSHM__CHILD, MPSHM__REGISTER, MPSHM__REGISTER,   MPSHM__GET,
        MPSHM__CONTROL, MPSHM__ANSWER, MPSHM__ADOPT, MPSHM__MEMBER,   MPSHM__MEMBER + 1, 0};
    unsigned char bytes[sizeof(struct mpshm__frame) * 2] = {0};
    struct mpshm__frame frame = {.magic = MPSHM__WIRE, .a = MPSHM__NO_SLOT};
    size_t size = sizeof(frame);
    int fds[MOST_FDS], count;

    for (int i = 0; i < MOST_FDS; i++)
        fds[i] = -1;
    frame.op = OPS[choose(c, sizeof(OPS) / sizeof(OPS[0]))];
    if (frame.op == MPSHM__HELLO)
        frame.a = (uint32_t)slots[k];
    count = pick_fds(c, fds);
    if (mine != NULL) {
        frame.strategy = (uint16_t)mine->strategy;
        frame.nonce[0] = mine->nonce[0];
        frame.nonce[1] = mine->nonce[1];
        frame.size = mine->size;
        frame.fd_number = mine->fd.number;
    }
    switch (choose(c, 4)) {
    case 0:
        frame.a = choose(c, 8); /* slots and indices that probably exist */
        break;
    case 1:
        distort(c, &frame, sizeof(frame));
        break;
    case 2:
        if (choose(c, 4) == 3)
            size = choose(c, sizeof(bytes));
        break;
    }
    memcpy(bytes, &frame, sizeof(frame));
    send_with(socks[k], bytes, size, fds, count);
    for (int i = 0; i < MOST_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static void send_bytes(struct choices *c, int k)
{
    unsigned char bytes[256];
    size_t size = choose(c, sizeof(bytes));

    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)choose(c, 256);
    send_with(socks[k], bytes, size, NULL, 0);
}

static void read_answers(int k)
{
    struct mpshm__frame frame;
    int fd = -1;

    for (;;) {
        struct pollfd p = {.fd = socks[k], .events = POLLIN};
        if (poll(&p, 1, 0) != 1 || mpshm__recv_frame(socks[k], &frame, &fd, 0) < 0)
            return;
        CHECK_EQ(frame.op, MPSHM__ANSWER);
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
}

/* Write into memory that the manager may have mapped, mostly into its tables. */
static void scribble(struct choices *c)
{
    if (mine == NULL)
        return;
    switch (choose(c, 4)) {
    case 0:
        distort(c, mine->header, sizeof(*mine->header));
        break;
    case 1: /* live blocks that a process has released */
        atomic_store(&mine->header->used, choose(c, 256));
        for (unsigned i = 0; i < 8; i++) {
            atomic_store(&mine->blocks[i].state, choose(c, 2) ? MPSHM__LIVE : 0);
            atomic_store(&mine->blocks[i].where, choose_word(c));
            atomic_store(&mine->metadata[i].size_class, (uint16_t)(choose(c, 256) * 257));
            atomic_store(&mine->metadata[i].page_state, (uint8_t)choose(c, 256));
        }
        break;
    case 2:
        distort(c, mine->blocks, 64 * sizeof(struct mpshm__block));
        break;
    default:
        distort(c, mine->metadata, 64 * sizeof(struct mpshm__metadata));
    }
}

static void one_step(struct choices *c)
{
    unsigned what = choose(c, 16);
    int k = (int)choose(c, CONNECTIONS);

    if (what < 10 && socks[k] < 0)
        dial(k);
    switch (what) {
    case 8:
        send_bytes(c, k);
        break;
    case 9:
        shutdown(socks[k], choose(c, 2) ? SHUT_WR : SHUT_RD);
        break;
    case 10:
    case 11:
        scribble(c);
        break;
    case 12:
        shut(k);
        break;
    case 13:
        if (socks[k] >= 0)
            read_answers(k);
        break;
    case 14:
        dial(k); /* and sometimes no byte at all */
        break;
    default:
        if (socks[k] < 0)
            dial(k);
        send_frame(c, k);
    }
}

/* Wait until the manager has served all that was sent: it answers in order. */
static void initialise(void)
{
    struct mpshm__frame frame = {.magic = MPSHM__WIRE, .op = MPSHM__GET};
    uint64_t until = mpshm__now_ns() + 20000000000ull;
    int fd = -1;

    dial(0);
    CHECK_EQ(mpshm__send_frame(socks[0], &frame, -1, until), 0);
    CHECK_EQ(mpshm__recv_frame(socks[0], &frame, &fd, until), 0);
    CHECK_EQ(frame.op, MPSHM__ANSWER);
    if (fd >= 0)
        close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned inputs;
    struct choices c = {data, data + size};

    prepare();
    while (c.at < c.end)
        one_step(&c);
    initialise();
    for (int k = 0; k < CONNECTIONS; k++)
        shut(k);
    discard_mine();
    if (++inputs % ASK_EVERY == 0)
        ask_neighbour(neighbour_sock);
    return 0;
}
