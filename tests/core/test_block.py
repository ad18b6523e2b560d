"""Block: an allocation of shared memory that can be sent to other processes."""

from __future__ import annotations

import copy
import gc
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
from support import tasks
from support.carriers import Carrier

import mp_all as mp
from mp_core.memory.block import block_at

SIZES = [0, 1, 7, 4096, 4097, 1 << 20]


def write_bytes(block: mp.Block, content: bytes) -> tuple[int, str, bytes]:
    before = bytes(block)
    memoryview(block)[: len(content)] = content
    return block.nbytes, block.strategy, before


def write_and_read_the_other(first: mp.Block, second: mp.Block) -> tuple[bool, bytes]:
    memoryview(first)[:3] = b"abc"
    return first is second, bytes(memoryview(second)[:3])


def keep_block(block: mp.Block) -> None:
    tasks.keep(block)


def kept_bytes() -> list[bytes]:
    return [bytes(block) for block in tasks.kept]


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_block_is_that_many_zeroed_writable_bytes(strategy: str, nbytes: int) -> None:
    block = mp.Block(nbytes)
    assert block.nbytes == nbytes
    assert block.is_shared is True
    assert block.strategy == strategy
    with memoryview(block) as view:
        assert (view.nbytes, view.format, view.ndim, view.readonly, view.c_contiguous) == (
            nbytes,
            "B",
            1,
            False,
            True,
        )
        assert view == bytes(nbytes)
        view[:] = b"\xa5" * nbytes
    assert bytes(block) == b"\xa5" * nbytes


def test_a_new_block_is_zeroed_even_in_memory_that_was_written_and_freed(strategy: str) -> None:
    for _ in range(20):
        block = mp.Block(10_000)
        assert bytes(block) == bytes(10_000)
        memoryview(block)[:] = b"\xff" * 10_000
        del block


def test_blocks_do_not_overlap(strategy: str) -> None:
    blocks = [mp.Block(100) for _ in range(50)]
    for number, block in enumerate(blocks):
        memoryview(block)[:] = bytes([number]) * 100
    assert [bytes(block) for block in blocks] == [bytes([number]) * 100 for number in range(50)]


def test_a_size_may_be_any_integer(strategy: str) -> None:
    class Three:
        def __index__(self) -> int:
            return 3

    assert mp.Block(Three()).nbytes == 3
    assert mp.Block(True).nbytes == 1


@pytest.mark.parametrize("nbytes", [-1, -(2**31), -(2**62), -(2**64), -(2**200)])
def test_a_negative_size_is_a_value_error_with_the_number(strategy: str, nbytes: int) -> None:
    with pytest.raises(ValueError, match=str(nbytes)):
        mp.Block(nbytes)


@pytest.mark.parametrize("nbytes", [2**50, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**200])
def test_an_absurd_size_is_a_memory_error_with_the_number(strategy: str, nbytes: int) -> None:
    with pytest.raises(MemoryError, match=str(nbytes)):
        mp.Block(nbytes)


@pytest.mark.parametrize("nbytes", [1.0, "8", b"8", None, [1], 2 + 0j])
def test_a_size_that_is_not_an_integer_is_a_type_error(strategy: str, nbytes: object) -> None:
    with pytest.raises(TypeError, match=type(nbytes).__name__):
        mp.Block(nbytes)


@pytest.mark.parametrize("arguments", [(), (1, 2)])
def test_a_wrong_number_of_arguments_is_a_type_error(arguments: tuple) -> None:
    with pytest.raises(TypeError):
        mp.Block(*arguments)


@pytest.mark.parametrize("name", ["nbytes", "is_shared", "strategy"])
def test_the_attributes_of_a_block_cannot_be_changed(name: str) -> None:
    block = mp.Block(10)
    with pytest.raises(AttributeError):
        setattr(block, name, 20)
    with pytest.raises(AttributeError):
        block.another_attribute = 1


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_a_block_to_store_it_is_a_type_error_that_says_so(strategy: str, protocol: int) -> None:
    with pytest.raises(TypeError, match="Block"):
        pickle.dumps(mp.Block(10), protocol)


def test_copying_a_block_is_a_type_error_that_says_so() -> None:
    for function in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="Block"):
            function(mp.Block(10))


def test_a_block_carries_writes_both_ways(carrier: Carrier) -> None:
    strategy = mp.get_sharing_strategy()
    block = mp.Block(8)
    memoryview(block)[:] = b"12345678"
    assert carrier.call(write_bytes, block, b"abc") == (8, strategy, b"12345678")
    assert bytes(block) == b"abc45678"


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_block_of_any_size_can_be_sent(echo: Carrier, nbytes: int) -> None:
    block = mp.Block(nbytes)
    result = echo.call(tasks.echo, block)
    assert result.nbytes == nbytes
    memoryview(result)[:] = b"z" * nbytes
    assert bytes(block) == b"z" * nbytes


def test_two_handles_of_one_block_in_one_process_are_one_memory(carrier: Carrier) -> None:
    block = mp.Block(10)
    carrier.call(keep_block, block)
    carrier.again(keep_block, block)
    memoryview(block)[:2] = b"hi"
    assert carrier.again(kept_bytes) == [b"hi" + bytes(8)] * 2
    assert carrier.again(write_and_read_the_other, block, block)[1] == b"abc"


def test_one_block_twice_in_a_message_is_one_object(echo: Carrier) -> None:
    block = mp.Block(10)
    assert echo.call(write_and_read_the_other, block, block) == (True, b"abc")


def test_a_block_received_by_its_sender_is_the_same_memory(strategy: str) -> None:
    block = mp.Block(10)
    again = ForkingPickler.loads(ForkingPickler.dumps(block))
    assert again.nbytes == 10
    memoryview(again)[:2] = b"hi"
    assert bytes(block) == b"hi" + bytes(8)
    memoryview(block)[2] = 33
    assert bytes(again) == b"hi!" + bytes(7)


def test_a_block_made_under_one_strategy_can_be_sent_under_another(echo: Carrier) -> None:
    here = mp.get_sharing_strategy()
    blocks = {}
    for name in sorted(mp.get_all_sharing_strategies()):
        mp.set_sharing_strategy(name)
        blocks[name] = mp.Block(4)
    mp.set_sharing_strategy(here)
    for name, block in blocks.items():
        assert echo.call(write_bytes, block, name[:4].encode())[1] == name
        assert bytes(block) == name[:4].encode()


def test_a_block_is_freed_when_its_last_view_is_dropped(strategy: str) -> None:
    before = mp.memory_stats()["live_bytes"]
    view = memoryview(mp.Block(100_000))
    gc.collect()
    assert mp.memory_stats()["live_bytes"] == before + 100_000
    view[0] = 1
    del view
    assert mp.memory_stats()["live_bytes"] == before


def test_a_block_can_be_hashed(strategy: str) -> None:
    block = mp.Block(10)
    assert block in {block}


def test_the_representation_has_the_size_and_the_strategy(strategy: str) -> None:
    text = repr(mp.Block(1234))
    assert "1234" in text
    assert strategy in text


def test_many_blocks_come_and_go_without_a_trace(strategy: str) -> None:
    before = {}
    for _ in range(4):
        held = [mp.Block(n) for n in range(0, 200_000, 1001)]
        held = [ForkingPickler.loads(ForkingPickler.dumps(block)) for block in held]
        assert sum(block.nbytes for block in held) == sum(range(0, 200_000, 1001))
        del held
        before = before or mp.memory_stats()  # the first round may make a new segment
    mp.empty_cache()
    after = mp.memory_stats()
    assert after["live_bytes"] == before["live_bytes"]
    assert [key for key in ("segments", "descriptors", "mappings") if after[key] > before[key]] == []


def test_an_address_leads_to_the_block_that_contains_it(strategy: str) -> None:
    block = mp.Block(1000)
    found = block_at(block.address + 999)
    assert found is not None
    memoryview(found)[0] = 9
    assert memoryview(block)[0] == 9
    assert block_at(block.address + 1000) is None
    assert block_at(id(block)) is None
