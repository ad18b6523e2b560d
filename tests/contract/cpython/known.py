"""The differences that are there on purpose: a part of the test's name, and the reason."""

from __future__ import annotations

KNOWN = {
    "TestResourceTracker.test_resource_tracker": "counts named semaphores that leak; our locks have no name",
    "TestStartMethod.test_mixed_startmethod": "expects an error for a lock of a fork context under spawn; ours works",
    "DeadlockTest.test_error_at_task_unpickle": "expects a failed message to break the executor; here its task fails",
    "DeadlockTest.test_error_during_result_unpickle_in_result_handler": "the same, for a result",
    "_TestImportStar.test_import": "imports every file beside `multiprocessing.__file__`; ours lies elsewhere",
}

_LOST = "expects a dead worker to break the executor; here the task that it was running fails with WorkerLostError"
KNOWN_OF_EXECUTORS = {
    "DeadlockTest.test_crash": _LOST,
    "DeadlockTest.test_shutdown_deadlock": _LOST,
    "ExecutorTest.test_killed_child": _LOST,
    "DeadlockTest.test_error_at_task_unpickle": "expects a failed message to break the executor; here its task fails",
    "DeadlockTest.test_error_during_result_unpickle_in_result_handler": "the same, for a result",
    "DeadlockTest.test_exit_at_task_unpickle": "the same, for a SystemExit",
    "DeadlockTest.test_exit_during_result_unpickle_in_result_handler": "the same, for a result",
    "ExecutorTest.test_max_tasks_per_child": "expects an error under fork; ours works under every start method",
    "ExecutorTest.test_python_finalization_error": "expects an error if a second thread cannot start; ours needs one",
    "ShutdownTest.test_cancel_futures": "expects a task to have begun at once; ours begin when a worker is ready",
}

KNOWN_OF_LIBRARIES = {
    "DeadlockOnNewFutures.test_pool_deadlock": "a worker ends with pebble's lock, and the test expects the pool to be "
    "broken; our lock passes on, and only the task fails",
    "DeadlockOnResult.test_pool_deadlock": "the same, for the lock of results",
}
