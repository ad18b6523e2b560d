"""Fixtures of the engines' tests."""

from __future__ import annotations

from typing import Any

import pytest

from mp_spawn import engines


@pytest.fixture(params=["local"])
def engine(request: pytest.FixtureRequest) -> Any:
    """
    Three nodes under each engine in turn.
    """
    return engines.Local(nodes=3)
