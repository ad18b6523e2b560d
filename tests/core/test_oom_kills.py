"""The kills of the out-of-memory killer are counted in each control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from mp_core.system.oom_kills import oom_kills, oom_kills_since, own_kills_between


def fake(folder: Path, version: int, own: int, above: int) -> str:
    """Make files like those in /proc and in the mounts of control groups."""
    mount = folder / "cgroup"
    for name, kills in (("", above), ("job", own)):
        (mount / name).mkdir(parents=True, exist_ok=True)
        file = mount / name / ("memory.events" if version == 2 else "memory.oom_control")
        file.write_text(f"low 0\noom 9\noom_kill {kills}\noom_group_kill 0\n")
    (mount / "job" / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text(f"{64 << 20}\n")
    (folder / "cgroup.txt").unlink(missing_ok=True)
    proc = folder / "proc"
    proc.mkdir(exist_ok=True)
    (proc / "cgroup").write_text("0::/job\n" if version == 2 else "4:memory:/job\n0::/\n")
    kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,memory"
    (proc / "mountinfo").write_text(f"30 25 0:26 / {mount} rw,nosuid - {kind}\n")
    return str(proc)


@pytest.mark.parametrize("version", [1, 2])
def test_the_kills_of_a_control_group_are_compared_at_every_level(tmp_path: Path, version: int) -> None:
    proc = fake(tmp_path, version, own=3, above=5)
    before = oom_kills(proc)
    assert sorted(before.values()) == [3, 5]
    assert oom_kills_since(before, proc) == ""
    fake(tmp_path, version, own=3, above=6)
    assert oom_kills_since(before, proc).startswith("perhaps by the out-of-memory killer: 1 killed in ")
    fake(tmp_path, version, own=4, above=6)
    said = oom_kills_since(before, proc)
    assert said == f"sent by the out-of-memory killer: 1 killed in {tmp_path}/cgroup/job, whose limit is 64 MiB"


@pytest.mark.parametrize("version", [1, 2])
def test_kills_in_the_groups_above_are_not_counted_as_the_own_groups(tmp_path: Path, version: int) -> None:
    proc = fake(tmp_path, version, own=3, above=5)
    before = oom_kills(proc)
    fake(tmp_path, version, own=3, above=9)
    assert own_kills_between(before, oom_kills(proc)) == 0
    fake(tmp_path, version, own=4, above=9)
    assert own_kills_between(before, oom_kills(proc)) == 1
    assert own_kills_between(before, {}) == own_kills_between({}, before) == 0


def test_the_group_of_a_container_is_found_at_its_mount_point(tmp_path: Path) -> None:
    proc = Path(fake(tmp_path, 1, own=3, above=5))
    (proc / "cgroup").write_text("4:memory:/docker/abc\n")
    line = (proc / "mountinfo").read_text().replace(" / ", " /docker/abc ")
    (proc / "mountinfo").write_text(line)
    assert list(oom_kills(str(proc)).values()) == [5]


def test_mounts_that_cannot_be_read_are_read_the_next_time(tmp_path: Path) -> None:
    proc = Path(fake(tmp_path, 2, own=3, above=5))
    (proc / "mountinfo").rename(proc / "away")  # or there is no descriptor
    assert oom_kills(str(proc)) == {}
    (proc / "away").rename(proc / "mountinfo")
    assert list(oom_kills(str(proc)).values()) == [3, 5]


@pytest.mark.parametrize("name", [b"caf\xe9", "café".encode(), b"a\rb", "a\u00a0b\u2028c".encode(), b"\\040-"])
def test_a_mount_of_any_name_hides_no_counter(tmp_path: Path, name: bytes) -> None:
    proc = Path(fake(tmp_path, 2, own=3, above=5))
    mounts = proc / "mountinfo"
    mounts.write_bytes(b"31 25 0:27 / /media/" + name + b" rw - tmpfs " + name + b" rw\n" + mounts.read_bytes())
    assert list(oom_kills(str(proc)).values()) == [3, 5]


@pytest.mark.parametrize("version", [1, 2])
def test_a_process_that_has_moved_to_another_group_is_counted_there(tmp_path: Path, version: int) -> None:
    proc = fake(tmp_path, version, own=3, above=5)
    assert list(oom_kills(proc, above=False).values()) == [3]
    (Path(proc) / "cgroup").write_text("0::/\n" if version == 2 else "4:memory:/\n0::/\n")
    assert list(oom_kills(proc, above=False).values()) == [5]
