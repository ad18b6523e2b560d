"""The differences that are there on purpose: a part of the test's name, and the reason."""

from __future__ import annotations

KNOWN: dict[str, str] = {}
