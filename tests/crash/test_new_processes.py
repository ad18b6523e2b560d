"""New processes of a session with many processes, without its folder, or with a stopped manager still get arrays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from test_daemons import run

WAIT = """
    WAIT = 100

    def total(array):
        return float(array.sum())
"""

# Half as many again as have a bit in a block's descriptor.
MANY = (
    WAIT
    + """
    def worker(inbox, outbox, end, both):
        array = inbox.get()
        outbox.put((array.sum(), (both == 4).all()))
        end.get()

    if __name__ == "__main__":
        ctx = mp.get_context(sys.argv[1])
        count = int(sys.argv[2])
        both = mp.shared.full(20_000, 4.0)
        inbox, outbox, end = ctx.SimpleQueue(), ctx.SimpleQueue(), ctx.SimpleQueue()
        children = [ctx.Process(target=worker, args=(inbox, outbox, end, both)) for _ in range(count)]
        for child in children:
            child.start()
        for i in range(count):
            inbox.put(np.full(20_000, float(i)))
        got = [outbox.get() for _ in children]
        assert sorted(s for s, _ in got) == [20_000.0 * i for i in range(count)]
        assert all(same for _, same in got)
        for _ in children:
            end.put(None)
        for child in children:
            child.join(WAIT)
            assert child.exitcode == 0, child
        print("arrived")
"""
)

MANY_WORKERS = (
    WAIT
    + """
    def plus_one(array):
        return array + 1

    if __name__ == "__main__":
        count = int(sys.argv[1])
        with mp.get_context("fork").Pool(count) as pool:
            results = pool.map_async(plus_one, [np.full(20_000, float(i)) for i in range(2 * count)], 1).get(WAIT)
            assert all((a == i + 1).all() for i, a in enumerate(results))
            pool.close()
            pool.join()
        print("arrived")
"""
)

REMOVED = (
    WAIT
    + """
    def look(inbox, outbox):
        outbox.put("ready")
        shared = inbox.get()
        shared += 1
        outbox.put((total(inbox.get()), float(shared[0])))
        outbox.put(np.full(50_000, 6.0))
        outbox.put(mp.shared.full(50_000, 7.0))

    def disturb(how):
        mine = FOLDER + "/mpshm-%d" % os.geteuid()
        if how == "folder":
            shutil.rmtree(mine, ignore_errors=True)  # the manager makes it again meanwhile
        elif how == "folder renamed":
            os.rename(mine, mine + "-of-yesterday")
        elif how == "socket":
            for session in os.listdir(mine):
                os.unlink(mine + "/" + session + "/socket")
        elif how == "user":
            os.setgid(65534)
            os.setuid(65534)
        elif how == "root":
            os.mkdir(sys.argv[3])
            os.chroot(sys.argv[3])

    if __name__ == "__main__":
        ctx = mp.get_context(sys.argv[1])
        shared = mp.shared.full(50_000, 3.0)
        process = ctx.Process(target=total, args=(np.ones(10),))  # what starts children is there
        process.start()
        process.join(WAIT)
        queues = [(ctx.SimpleQueue(), ctx.SimpleQueue()) for _ in range(3)]
        disturb(sys.argv[2])
        for round, (inbox, outbox) in enumerate(queues):
            child = ctx.Process(target=look, args=(inbox, outbox))
            child.start()
            assert outbox.get() == "ready"
            inbox.put(shared)
            inbox.put(np.full(50_000, 2.0))
            assert outbox.get() == (100_000.0, 4.0 + round)
            assert total(outbox.get()) == 300_000
            assert total(outbox.get()) == 350_000
            child.join(WAIT)
            assert child.exitcode == 0, child
            assert shared[0] == 4 + round
        shutil.rmtree(FOLDER + "/mpshm-%d-of-yesterday" % os.geteuid(), ignore_errors=True)
        print("arrived")
"""
)


@pytest.mark.timeout(180)
def test_arrays_reach_each_of_many_children(tmp_path: Path, strategy: str, start_method: str) -> None:
    count = "280" if start_method == "fork" else "30"
    assert run(tmp_path, MANY, start_method, count, MP_SHARING_STRATEGY=strategy) == "arrived\n"


@pytest.mark.timeout(180)
def test_a_pool_of_270_workers_gives_all_results(tmp_path: Path, strategy: str) -> None:
    assert run(tmp_path, MANY_WORKERS, "270", MP_SHARING_STRATEGY=strategy) == "arrived\n"


@pytest.mark.parametrize("what", ["folder", "folder renamed", "socket"])
def test_new_children_share_when_it_was_removed(tmp_path: Path, strategy: str, start_method: str, what: str) -> None:
    assert run(tmp_path, REMOVED, start_method, what, MP_SHARING_STRATEGY=strategy) == "arrived\n"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user or change its root")


# Forked ones alone: an interpreter that another user may run, or that is in another root, is not to be had everywhere.
@needs_root
def test_forked_children_share_after_a_change_of_the_user(tmp_path: Path, strategy: str) -> None:
    assert run(tmp_path, REMOVED, "fork", "user", MP_SHARING_STRATEGY=strategy) == "arrived\n"


@needs_root
def test_forked_children_share_in_another_root(tmp_path: Path) -> None:
    # There is no /dev/shm in it, for named memory.
    root = str(tmp_path / "root")
    assert run(tmp_path, REMOVED, "fork", "root", root, MP_SHARING_STRATEGY="file_descriptor") == "arrived\n"
