"""Send arrays through a queue: private ones arrive as copies, shared ones as the same memory."""

import numpy as np

import mp_all as mp


def add_one(inbox, outbox) -> None:
    while (array := inbox.get(timeout=60)) is not None:
        array += 1  # a received array is always writable
        outbox.put(array)


if __name__ == "__main__":
    spawn = mp.get_context("spawn")
    there, back = spawn.Queue(), spawn.Queue()
    child = spawn.Process(target=add_one, args=(there, back))
    child.start()

    private = np.zeros((2000, 2000))
    there.put(private)
    answer = back.get(timeout=60)
    assert (answer == 1).all()
    assert (private == 0).all()  # as with multiprocessing: the sender keeps its own

    shared = mp.shared.zeros((2000, 2000))
    there.put(shared)
    answer = back.get(timeout=60)
    assert (shared == 1).all()
    assert np.shares_memory(answer, shared)  # there and back, and never copied

    there.put(None)
    child.join(60)
    assert child.exitcode == 0
    print(f"{private.nbytes / 1e6:.0f} MB sent twice: copied once when private, never when shared")
