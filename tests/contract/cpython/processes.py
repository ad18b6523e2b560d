"""The suite's test classes under the start method in `MP_CONTRACT_METHOD`, importable where they are unpickled."""

from __future__ import annotations

import os

from test import _test_multiprocessing

# Here and in every child that unpickles one of its classes: the suite is on the library that it is said to be on.
library = _test_multiprocessing.multiprocessing.__name__
if library != os.environ["MP_CONTRACT"]:
    raise ImportError(f"the suite was loaded on {library} and is to run on {os.environ['MP_CONTRACT']}")

_test_multiprocessing.install_tests_in_module_dict(globals(), os.environ["MP_CONTRACT_METHOD"])
