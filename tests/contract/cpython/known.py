"""The differences that are there on purpose: a part of the test's name, and the reason."""

from __future__ import annotations

KNOWN = {
    "TestResourceTracker.test_resource_tracker": "counts named semaphores that leak; our locks have no name",
    "TestStartMethod.test_mixed_startmethod": "expects an error for a lock of a fork context under spawn; ours works",
    "DeadlockTest.test_error_at_task_unpickle": "expects a failed message to break the executor; here its task fails",
    "DeadlockTest.test_error_during_result_unpickle_in_result_handler": "the same, for a result",
    "_TestImportStar.test_import": "imports every file beside `multiprocessing.__file__`; ours lies elsewhere",
}
