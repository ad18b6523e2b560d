"""The context whose pipes and queues are channels, whatever MP_CHANNEL says."""

from __future__ import annotations

from typing import Any

import pytest

from mp_core.installation import contexts


@pytest.fixture
def forking() -> Any:
    """
    The context of fork, for properties that do not depend on the start method.
    """
    return contexts.default_context.get_context("fork")


@pytest.fixture(params=[True, False], ids=["duplex", "one way"])
def ends(request: pytest.FixtureRequest, forking: Any) -> Any:
    """
    The reading and the writing end of a pipe.
    """
    reader, writer = forking.Pipe(request.param)
    yield reader, writer
    reader.close()
    writer.close()
