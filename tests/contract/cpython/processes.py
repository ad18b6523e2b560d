"""The suite's test classes under the start method in `MP_CONTRACT_METHOD`, importable where they are unpickled."""

from __future__ import annotations

import os
from test import _test_multiprocessing

_test_multiprocessing.install_tests_in_module_dict(globals(), os.environ["MP_CONTRACT_METHOD"])
