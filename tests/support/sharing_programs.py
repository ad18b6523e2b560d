"""Programs that share memory, for every system and stand-in: each prints what a test expects."""

SHARED = """
    import sys
    import numpy as np
    import mp_all as mp

    def child(here, there):
        while (message := here.recv()) is not None:
            first, second = message
            assert np.shares_memory(first, second) and mp.is_shared(first)
            first[...] = 7
            there.send(second)

    if __name__ == "__main__":
        context = mp.get_context(sys.argv[1])
        (reader, to_child), (back, writer) = context.Pipe(False), context.Pipe(False)
        process = context.Process(target=child, args=(reader, writer))
        process.start()
        for count in (1, 1000, 1 << 20):
            array = mp.shared.zeros(count)
            to_child.send((array, array[::-1]))
            returned = back.recv()
            assert (array == 7).all() and np.shares_memory(array, returned), count
        moved = np.arange(1 << 20)
        assert mp.share_memory_(moved) is moved and mp.is_shared(moved) and moved[-1] == (1 << 20) - 1
        to_child.send((moved, moved))
        assert np.shares_memory(back.recv(), moved) and (moved == 7).all()
        assert mp.is_shared(mp.share_memory(np.ones(3)))
        to_child.send(None)
        process.join()
        print(process.exitcode)
"""

MOVED = """
    import sys
    import numpy as np
    import mp_all as mp

    def child(here, there):
        while (message := here.recv()) is not None:
            array, data, text = message
            assert mp.is_shared(array) and array.flags.writeable
            array[0] = -1.0
            there.send((array, data, text, mp.memory_stats()["copied_bytes"]))

    if __name__ == "__main__":
        context = mp.get_context(sys.argv[1])
        (reader, to_child), (back, writer) = context.Pipe(False), context.Pipe(False)
        process = context.Process(target=child, args=(reader, writer))
        process.start()
        sent = np.arange(1 << 18, dtype=float)
        copied = mp.memory_stats()["copied_bytes"]
        to_child.send((sent, b"b" * (1 << 20), "t" * (1 << 20)))
        array, data, text, theirs = back.recv()
        assert sent[0] == 0.0 and array[0] == -1.0 and (array[1:] == sent[1:]).all()
        assert data == b"b" * (1 << 20) and text == "t" * (1 << 20)
        assert mp.memory_stats()["copied_bytes"] - copied == sent.nbytes + len(data) + len(text)
        frozen = np.ones(1 << 18)
        frozen.flags.writeable = False
        here, there = mp.Pipe()
        there.send(frozen)
        assert not here.recv().flags.writeable
        to_child.send(None)
        process.join()
        print(process.exitcode)
"""

OUTLIVES = """
    import sys
    import numpy as np
    import mp_all as mp

    def sender(pipe):
        pipe.send(np.arange(1 << 18))

    if __name__ == "__main__":
        context = mp.get_context(sys.argv[1])
        reader, writer = context.Pipe(False)
        process = context.Process(target=sender, args=(writer,))
        process.start()
        if sys.argv[2] == "after its sender":
            process.join()
        array = reader.recv()
        process.join()
        print(array.sum() == sum(range(1 << 18)), process.exitcode)
"""

REFUSED = """
    import numpy as np
    import mp_all as mp
    from multiprocessing.reduction import ForkingPickler

    array = mp.shared.ones(1000)
    message = bytes(ForkingPickler.dumps(array))
    received = ForkingPickler.loads(message)
    def refusal(data):
        try:
            ForkingPickler.loads(data)
        except Exception as error:
            return type(error).__name__
    at = message.index(b"C8") + 2
    replayed = refusal(message)
    damaged = [refusal(message[:at + k] + bytes([message[at + k] ^ 1]) + message[at + k + 1:]) for k in range(56)]
    again = bytes(ForkingPickler.dumps(array))
    del array, received
    mp.empty_cache()
    assert ForkingPickler.loads(again).sum() == 1000
    print(replayed, set(damaged), refusal(again))
"""
