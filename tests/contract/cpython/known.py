"""The differences that are there on purpose: a part of the test's name, and the reason."""

from __future__ import annotations

KNOWN = {
    "_TestImportStar.test_import": "imports every file beside `multiprocessing.__file__`; ours lies elsewhere",
}
