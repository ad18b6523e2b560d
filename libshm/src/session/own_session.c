/* The tree in which this process allocates: its name, how a child gets it, how one enters. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "internal.h"

static unsigned char home_id[MPSHM_ID_SIZE];
static int home_is_set;

static int home_id_once(void)
{
    if (!home_is_set &&
        MPSHM__RETRY(getrandom(home_id, sizeof(home_id), 0)) != (long)sizeof(home_id))
        return -EIO;
    home_is_set = 1;
    return 0;
}

int mpshm__is_home(const unsigned char *id)
{
    return home_is_set && memcmp(home_id, id, MPSHM_ID_SIZE) == 0;
}

int mpshm_home(unsigned char *id)
{
    mpshm__acquire();
    int err = home_id_once();
    memcpy(id, home_id, sizeof(home_id));
    mpshm__release();
    return err;
}

int mpshm_set_home(const unsigned char *id)
{
    int err = 0;

    mpshm__acquire();
    if (!home_is_set) {
        memcpy(home_id, id, sizeof(home_id));
        home_is_set = 1;
    } else if (memcmp(home_id, id, sizeof(home_id)) != 0) {
        err = -EBUSY;
    }
    mpshm__release();
    return err;
}

int mpshm__home(struct mpshm__tree **tree)
{
    int err = home_id_once();

    return err < 0 ? err : mpshm__tree_of(home_id, 1, tree);
}

int mpshm_open_for_child(int fds[2])
{
    struct mpshm__tree *tree;

    fds[0] = fds[1] = -1;
    mpshm__acquire();
    int err = mpshm__home(&tree);
    if (err == 0 && (err = mpshm__tree_reopen(tree, 1)) >= 0) {
        fds[0] = err;
        err = mpshm__connect_child(tree, -1);
        fds[1] = err < 0 ? -1 : err; /* no manager yet: the child finds it by the path */
    }
    mpshm__release();
    return fds[0] < 0 ? err : 0;
}

int mpshm_enter_with(const unsigned char *id, const int fds[2])
{
    int err = mpshm_set_home(id);

    if (err < 0) {
        for (int i = 0; i < 2; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        return err;
    }
    mpshm__acquire();
    mpshm__tree_inherit(id, fds[0], fds[1]);
    mpshm__release();
    return mpshm_enter(); /* by the path, where the descriptors are of no use */
}

int mpshm_enter(void)
{
    struct mpshm__tree *tree;

    mpshm__acquire();
    int err = mpshm__home(&tree);
    mpshm__release();
    return err;
}
