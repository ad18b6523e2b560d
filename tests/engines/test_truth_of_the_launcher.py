"""The truth tests of the launcher again, with the ranks on an engine.

The tests are those of tests/spawn, in which the calls of the launcher get `engine=`. These stay behind:

- tests that wait for ranks with a pipe, which does not reach other machines; test_truth.py has them with files
- tests of the process objects, which an engine does not have, and of the pipe between a rank and its parent
- tests of one start method: an engine has spawn
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import test_failures_of_ranks
import test_options_of_ranks
import test_output_of_ranks
import test_run
from support.waiting import until

import mp_spawn

ROWS: dict[ModuleType, tuple[str, ...]] = {
    test_failures_of_ranks: (
        "test_the_exception_itself_is_the_cause",
        "test_an_exception_that_cannot_be_sent_leaves_its_text",
        "test_sys_exit_with_a_number_is_that_exit_code",
        "test_sys_exit_with_a_text_is_exit_code_1_and_the_text",
        "test_an_exit_code_that_is_zero_modulo_256_is_a_failure",
        "test_sys_exit_with_zero_is_success",
        "test_os_exit_with_a_number_is_that_exit_code",
        "test_exiting_without_a_result_is_a_failure_of_run",
        "test_a_signal_is_named",
        "test_a_signal_without_a_name_is_a_number",
        "test_a_rank_that_is_interrupted_has_failed",
        "test_an_exception_while_arguments_are_unpickled_is_reported",
        "test_a_rank_ended_after_the_failure_of_another_has_not_failed",
        "test_a_report_of_any_size_is_received",
        "test_large_arguments_do_not_block_the_start",
        "test_a_forked_child_that_leaves_fn_reports_nothing",
        "test_a_rank_that_is_killed_right_after_its_start_has_failed",
        "test_a_rank_that_exits_with_an_error_after_it_returned_has_failed",
    ),
    test_options_of_ranks: (
        "test_env_is_a_mapping_or_a_function_of_the_rank",
        "test_threads_per_rank_sets_the_variables",
        "test_a_rank_is_restarted_at_most_max_restarts_times",
        "test_a_restarted_rank_appends_to_its_output_file",
    ),
    test_output_of_ranks: (
        "test_captured_output_is_separate_for_each_rank",
        "test_captured_output_is_on_the_failure",
        "test_a_folder_gets_a_file_per_rank_and_stream",
    ),
    test_run: (
        "test_results_are_ordered_by_rank",
        "test_results_of_any_size_are_received",
        "test_a_result_that_cannot_be_pickled_is_the_ranks_failure",
        "test_a_rank_that_was_killed_before_its_result_is_a_failure",
        "test_cloudpickle_sends_lambdas_and_closures",
    ),
}
globals().update({name: getattr(module, name) for module, names in ROWS.items() for name in names})
# The modules themselves are no tests of this one.
for module in ROWS:
    del globals()[module.__name__]


@pytest.fixture
def start_method(engine: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """
    Give the calls of the launcher an engine, in the place of a start method.
    """

    def start_processes(*args: Any, **options: Any) -> Any:
        options.pop("start_method", None)
        context: Any = mp_spawn.start_processes(*args, engine=engine, **options)
        if context is not None:
            # The tests ask for pids at once.
            until(lambda: all(context.pids()) or context._done.is_set(), 60)
        return context

    def run(*args: Any, **options: Any) -> Any:
        options.pop("start_method", None)
        return mp_spawn.run(*args, engine=engine, **options)

    for module in ROWS:
        monkeypatch.setattr(module, "start_processes", start_processes, raising=False)
        monkeypatch.setattr(module, "run", run, raising=False)
    return "spawn"
