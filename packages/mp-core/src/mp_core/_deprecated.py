"""Old public names: they work for one more release, with a `DeprecationWarning`."""

from __future__ import annotations

import warnings

from mp_core.errors import user_stack_level

__all__ = ["RENAMED", "warn_renamed"]

RENAMED = {"Claim": "LeaseReference", "claim_lease": "receive_lease"}


def warn_renamed(old: str, new: str) -> None:
    """Warn about the user's line that the name *old* is now *new*."""
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=user_stack_level())
