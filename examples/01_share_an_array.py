"""Let two processes write to one array, which is the same memory on both sides."""

import numpy as np

import mp_all as mp


def double(array: np.ndarray, written, doubled) -> None:
    assert mp.is_shared(array)
    assert written.wait(60)
    array *= 2
    doubled.set()


if __name__ == "__main__":
    spawn = mp.get_context("spawn")
    array = mp.shared.zeros((1000, 1000))
    written, doubled = spawn.Event(), spawn.Event()
    child = spawn.Process(target=double, args=(array, written, doubled))
    child.start()

    array[:] = 21  # after the array was sent: the child still sees it
    written.set()
    assert doubled.wait(60)
    assert (array == 42).all()
    print(f"21 was written here and doubled there: {array[0, 0]:.0f}")

    child.join(60)
    assert child.exitcode == 0
