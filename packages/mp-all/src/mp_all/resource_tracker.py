"""For type checkers. At run time `import mp_all.resource_tracker` is multiprocessing.resource_tracker itself."""

from multiprocessing.resource_tracker import *
from multiprocessing.resource_tracker import (
    ResourceTracker as ResourceTracker,
    getfd as getfd,
    main as main,
)
