"""A plugin of pytest: joblib's default backend is mp_all. See the session `joblib` of the noxfile.

Some tests of joblib cannot hold then, each for the reason beside its name.
"""

from __future__ import annotations

import pytest

import mp_all

mp_all.joblib_install()

NOT_FOR_US = {
    "test_backend_hinting_and_constraints": "it asks whether the class of the default backend is loky's",
    "test_nested_loop[loky-mp_all]": "a worker of loky does not know mp_all's backend",
    "test_nested_loop[back_compat_backend-mp_all]": "a worker of another backend does not know mp_all's",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name, reason in NOT_FOR_US.items():
            if item.name == name or item.name.startswith(f"{name}["):
                item.add_marker(pytest.mark.skip(reason=reason))
