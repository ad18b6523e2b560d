"""Tables, comparisons and plots are made from a record. These tests measure nothing."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import re
from pathlib import Path

import canned
import pytest
from support.scripts import run_python, succeeded

from benchmarks import compare, readme, record, table
from benchmarks.record import from_json
from benchmarks.samples import Claim, Figure, Line, Sample, in_words


def needs_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed: it is in the bench group")


def test_a_line_is_read_as_it_was_written() -> None:
    line = Line("P1", "a line", {"ours": Sample([1.0, 2.0, 3.0, 4.0, 9.0]), "Ray": Sample()}, nbytes=7, note="a note")
    line.claims.append(Claim("ratio", 0.5, 1.0))
    found = canned.found() | {"lines": [json.loads(json.dumps(line.as_json()))]}
    (entry,) = from_json(found).entries
    assert entry.figures == {"ours": Figure(3.0, 2.0, 4.0, 5, "s")}
    assert (entry.row, entry.what, entry.nbytes, entry.note) == ("P1", "a line", 7, "a note")
    assert entry.claims == line.claims


def test_a_record_of_another_schema_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(canned.found() | {"schema": record.SCHEMA + 1}))
    with pytest.raises(ValueError, match=rf"old\.json: the record has schema {record.SCHEMA + 1}, this reads"):
        record.read(path)


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (78.04e-6, "s", "78 µs"),
        (999.4e-6, "s", "999 µs"),
        (999.6e-6, "s", "1 ms"),
        (0.9996, "s", "1 s"),
        (2.5e9, "B/s", "2.50 GB/s"),
        (43466.4, " /s", "43,466 /s"),
        (149.0, "B", "149 B"),
        (2048, "B", "2.0 KiB"),
        (3, "", "3"),
    ],
)
def test_a_number_has_three_figures_and_the_unit_that_suits_it(value: float, unit: str, words: str) -> None:
    assert in_words(value, unit) == words


def test_the_table_has_a_cell_for_each_figure_with_its_spread() -> None:
    text = table.measured(from_json(canned.FOUND).of("P1"))
    assert [cell.strip() for cell in text.splitlines()[0].split("|")] == ["", "", "ours", "stdlib", "floor", ""]
    assert "70 µs ±10%" in text and "80 µs ±10%" in text and "50 µs ±10%" in text


def test_each_of_many_peers_has_a_line() -> None:
    found = canned.found()
    for entry in found["lines"][:2]:
        entry["figures"] |= {f"peer {k}": canned.figure(1.0) for k in range(table.MANY)}
    head, _, *lines = table.measured(from_json(found).of("P1", "P2")).splitlines()
    assert [cell.strip() for cell in head.split("|")[1:-1]] == ["round trip, fresh", "200 B", "1 MiB"]
    names = [line.split("|")[1].strip() for line in lines]
    assert names == ["ours", "stdlib", *(f"peer {k}" for k in range(table.MANY)), "floor"]
    assert lines[-1].split("|")[3].strip() == "-"  # a missing measurement is a dash, and not left out


def test_a_missed_target_is_shown_as_missed() -> None:
    found = canned.found()
    found["lines"][0]["claims"][0] |= {"value": 1.2}
    assert "| 1.2      | ≤ 1.1  | **missed** |" in table.ratios(from_json(found).of("P1"))


def test_the_distance_to_the_floor_is_among_the_ratios() -> None:
    assert "ours / floor (an int) | 1.4 " in table.ratios(from_json(canned.FOUND).of("P1"))


def test_a_missing_peer_is_named_with_its_reason() -> None:
    told = from_json(canned.FOUND)
    for text in table.terminal(told), table.peers(told):
        assert "Ray" in text and "No module named 'ray'; `nox -s bench -- --peers` installs it" in text


def test_a_failed_measurement_is_named_with_its_reason() -> None:
    failed = from_json(canned.found() | {"failed": {"P5 1 MiB, mpire": "no answer within 60 s"}})
    assert "failed: P5 1 MiB, mpire: no answer within 60 s" in table.terminal(failed)
    assert re.search(r"\| P5 1 MiB, mpire +\| failed +\| no answer within 60 s ", table.peers(failed))


def test_a_run_compared_with_itself_has_not_changed() -> None:
    same = from_json(canned.FOUND)
    assert {change.ratio for change in compare.changes(same, same)} == {1.0}
    assert compare.too_slow(same, same, 1.0) == []


def test_a_slower_run_is_above_one_for_times_and_for_rates() -> None:
    slower = canned.found()
    for entry in slower["lines"]:
        ours = entry["figures"]["ours"]
        factor = 0.5 if ours["unit"].endswith("/s") else 2.0
        ours["median"] *= factor
        ours["quartiles"] = [quartile * factor for quartile in ours["quartiles"]]
    changes = compare.changes(from_json(slower), from_json(canned.FOUND))
    assert [change.ratio for change in changes] == pytest.approx([2.0] * 5)
    assert all(low <= change.ratio <= high for change in changes for low, high in [change.spread])


def test_a_machine_in_a_slower_hour_is_no_regression() -> None:
    hour = canned.scaled(2.0, "ours", "stdlib", "floor")
    changes = {c.entry.what: c for c in compare.changes(from_json(hour), from_json(canned.FOUND))}
    assert changes["round trip, fresh 200 B"].ratio == pytest.approx(2)
    assert changes["round trip, fresh 200 B"].net == pytest.approx(1)
    assert changes["round trip, fresh 1 MiB"].yardstick == "stdlib"  # it has no floor


def test_a_regression_changes_the_exit_status_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = from_json(canned.FOUND), from_json(canned.scaled(2.0, "ours"))
    assert compare.show(new, old, None) == 0
    assert compare.show(new, old, 3.0) == 0
    capsys.readouterr()
    assert compare.show(new, old, 1.5) == 1
    assert "too slow: round trip, fresh 200 B: 2.00 > 1.5" in capsys.readouterr().out


def test_a_change_from_zero_is_infinitely_worse() -> None:
    assert compare.worse(0, 0, False) == 1
    assert compare.worse(1, 0, False) == math.inf


def test_lines_of_only_one_run_are_named() -> None:
    less = canned.found()
    gone = less["lines"].pop()
    assert f"only before: {gone['what']}" in compare.report(from_json(less), from_json(canned.FOUND))


def test_only_what_is_between_the_marks_is_replaced() -> None:
    text = "before\n<!-- measured: figures P7 -->\nstale\n<!-- /measured -->\nafter\n"
    written = readme.written(text, from_json(canned.FOUND))
    assert written.startswith("before\n<!-- measured: figures P7 -->\n|") and written.endswith(
        "<!-- /measured -->\nafter\n"
    )
    assert "stale" not in written and "| descriptors | 3 ±0% |" in written
    assert readme.written(written, from_json(canned.FOUND)) == written


def test_the_best_of_a_line_is_bold_whether_less_or_more_is_better() -> None:
    text = readme.short(from_json(canned.FOUND))
    assert "| **70 µs** " in text and "| **10.00 GB/s** " in text and "**80 µs**" not in text


def test_each_plot_is_drawn_and_come_out_the_same_twice(tmp_path: Path) -> None:
    needs_matplotlib()
    found = tmp_path / "found.json"
    record.write(found, canned.FOUND)
    drawn = []
    for _ in range(2):  # in a separate process: matplotlib keeps its fonts open
        succeeded(run_python("-m", "benchmarks.plots", str(found), str(tmp_path), cwd=record.ROOT))
        drawn.append({path.name: path.read_text() for path in tmp_path.glob("*.svg")})
    assert sorted(drawn[0]) == ["hero.svg", "latency.svg", "throughput.svg"] and drawn[0] == drawn[1]
    assert all("<svg" in text for text in drawn[0].values())


def test_the_plot_of_small_messages_has_every_situation_and_peer(tmp_path: Path) -> None:
    needs_matplotlib()
    from benchmarks import plots

    canned_run = canned.found()
    figures = {name: canned.figure(20e-6) for name in ("ours", "stdlib", "faster-fifo", "iceoryx2", "raw pipe")}
    canned_run["lines"] = [canned.line("P12", what, figures) for what in plots.MESSAGES]
    source = tmp_path / "found.json"
    record.write(source, canned_run)
    succeeded(run_python("-m", "benchmarks.plots", str(source), str(tmp_path), cwd=record.ROOT))
    (path,) = tmp_path.glob("*.svg")
    drawn = path.read_text()
    assert path.name == "messages.svg"
    for words in (*plots.MESSAGES.values(), *(plots.STYLES[name][0] for name in figures)):
        assert all(f"<!-- {line} -->" in drawn for line in words.split("\n"))


def test_labels_never_touch_and_keep_their_order() -> None:
    needs_matplotlib()
    from benchmarks import plots

    wanted = [5.0, 5.1, 0.0, 9.0, 5.2]
    places = plots.apart(wanted, 1.0)
    assert sorted(range(5), key=lambda k: places[k]) == sorted(range(5), key=lambda k: wanted[k])
    ordered = sorted(places)
    assert min(b - a for a, b in itertools.pairwise(ordered)) >= 1.0 - 1e-9
    assert places[2] == 0.0 and places[3] == 9.0  # a label without neighbours stays in place
