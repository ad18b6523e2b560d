/* The fuzz target of the manager, driven by seeded mutations. FUZZ_COUNT=10000000 is the long form.
 */
#include "../fuzz/manager.c"
#include "../fuzz/driver.h"

int main(int argc, char **argv)
{
    return drive_in_a_child(argc, argv, 20000);
}
