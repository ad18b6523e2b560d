from multiprocessing.resource_tracker import *
from multiprocessing.resource_tracker import (
    ResourceTracker as ResourceTracker,
    getfd as getfd,
    main as main,
)
