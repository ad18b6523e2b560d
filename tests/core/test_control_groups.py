"""The processors that affinity and control groups grant a process."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from mp_core.system import control_groups
from mp_core.system.control_groups import memory_left, quota


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{text}\n")


def own(folder: Path, text: str) -> Path:
    path = folder / "cgroup"
    path.write_text(text)
    return path


def test_the_least_quota_of_all_levels_counts(tmp_path: Path) -> None:
    group(tmp_path / "fs" / "pod" / "box", cpu_max="300000 100000")
    group(tmp_path / "fs" / "pod", cpu_max="150000 100000")
    group(tmp_path / "fs", cpu_max="max 100000")
    assert quota(tmp_path / "fs", own(tmp_path, "0::/pod/box\n")) == 1.5


def test_version_1_has_the_quota_in_two_files(tmp_path: Path) -> None:
    group(tmp_path / "fs" / "cpu" / "box", cpu_cfs_quota_us="50000", cpu_cfs_period_us="100000")
    group(tmp_path / "fs" / "cpu", cpu_cfs_quota_us="-1", cpu_cfs_period_us="100000")
    assert quota(tmp_path / "fs", own(tmp_path, "5:cpu,cpuacct:/box\n4:memory:/box\n")) == 0.5


@pytest.mark.parametrize("text", ["", "max 100000", "1 0", "nonsense", "-1 100000"])
def test_a_group_without_a_quota_grants_all(tmp_path: Path, text: str) -> None:
    group(tmp_path / "fs", cpu_max=text)
    assert quota(tmp_path / "fs", own(tmp_path, "0::/\n")) == math.inf
    assert quota(tmp_path / "fs", tmp_path / "missing") == math.inf


MEMINFO = "MemTotal: 24000 kB\nSwapFree: 3 kB\n"
STAT_1 = "active_file 1000\ntotal_active_file 2000\ntotal_inactive_file 500\ntotal_active_anon 9000\n"


def test_the_least_memory_of_all_levels_is_left(tmp_path: Path) -> None:
    (meminfo := tmp_path / "meminfo").write_text(MEMINFO)
    stat = "anon 9000\nactive_file 2000\ninactive_file 500"
    group(tmp_path / "fs" / "pod" / "box", memory_max="max", memory_current="5000", memory_stat=stat)
    group(tmp_path / "fs" / "pod", memory_max="10000", memory_current="9000", memory_stat=stat)
    group(tmp_path / "fs", memory_current="20000")
    assert memory_left(tmp_path / "fs", own(tmp_path, "0::/pod/box\n"), meminfo) == 10_000 - 9000 + 2500 + 3072
    assert memory_left(tmp_path / "fs", tmp_path / "missing", meminfo) == math.inf


def test_version_1_has_a_number_of_its_own_for_no_limit_of_memory(tmp_path: Path) -> None:
    files = {"memory_usage_in_bytes": "9000", "memory_stat": STAT_1}
    group(tmp_path / "fs" / "memory" / "box", memory_limit_in_bytes="10000", **files)
    group(tmp_path / "fs" / "memory", memory_limit_in_bytes="9223372036854771712", **files)
    (meminfo := tmp_path / "meminfo").write_text("")
    for line, left in (("4:memory:/box\n", 10_000 - 9000 + 2500), ("4:memory:/\n", math.inf)):
        assert memory_left(tmp_path / "fs", own(tmp_path, line), meminfo) == left


def test_a_process_has_no_more_processors_than_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(control_groups, "quota", lambda: 1.5)
    assert control_groups.processors() == 1.5
    monkeypatch.setattr(control_groups, "quota", lambda: math.inf)
    assert control_groups.processors() == 64
