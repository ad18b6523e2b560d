/* Thread names: a set name is read back, and a long one is cut between characters. */
#include "check.h"
#include "mpshm.h"

static void expect(const char *set, const char *get)
{
    char name[MPSHM_THREAD_NAME_SIZE];

    CHECK_EQ(mpshm_set_thread_name(set), 0);
    CHECK_EQ(mpshm_get_thread_name(name), 0);
    if (strcmp(name, get) != 0) {
        fprintf(stderr, "set \"%s\", got \"%s\", expected \"%s\"\n", set, name, get);
        exit(1);
    }
}

int main(void)
{
    expect("feeder", "feeder");
    expect("", "");
    expect("exactly15bytes!", "exactly15bytes!");
    expect("sixteen bytes 16", "sixteen bytes 1");
    /* The euro sign is three bytes, and its third would be the sixteenth here. */
    expect("thirteen byte\xe2\x82\xac", "thirteen byte");
    expect("twelve bytes\xe2\x82\xac", "twelve bytes\xe2\x82\xac");
    return 0;
}
