"""Peers without the key: one relays the connection of two nodes and writes into it; many connect and are silent."""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.ports import free_port
from support.waiting import until
from test_command_on_nodes import KEY, NOTHING, SLURM, WritesAFile, environment, finish, listens

from mp_nodes.job_place import place_in_job
from mp_nodes.protocol import Node
from mp_nodes.transport import handshake
from mp_nodes.transport.connection import ConnectedAgents
from mp_nodes.transport.wire import CHUNK, Seals, TamperedError, Wire

BYTES_KEY = KEY.encode()


@contextmanager
def node(
    rank: int, port: int, *arguments: str, nodes: int = 2, descriptors: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """
    Start the mp-spawn of one node.
    """
    place = ["--nnodes", str(nodes), "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", str(port)]
    limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))) if descriptors else None
    process = subprocess.Popen(
        [sys.executable, "-m", "mp_spawn", *place, "-n", str(nodes), *arguments],
        env=environment(MP_SPAWN_KEY=KEY, NO_COLOR="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def exactly(peer: socket.socket, size: int) -> bytes:
    came = b""
    while len(came) < size:
        more = peer.recv(size - len(came))
        if not more:
            raise EOFError
        came += more
    return came


class Relay:
    """
    Takes the connection of node 1, relays its handshake to node 0, and does then what *attack* does to both ends.

    *answer* is the number of bytes of node 0 that are relayed after the introduction of node 1.
    """

    def __init__(self, node_0: int, answer: int, attack: Callable[[socket.socket, socket.socket], None]) -> None:
        self._node_0, self._answer, self._attack = node_0, answer, attack
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._ends: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._server, *self._ends:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in self._server, *self._ends:
            each.close()

    def _run(self) -> None:
        with suppress(OSError, EOFError):
            victim, _ = self._server.accept()
            self._ends.append(victim)
            node_0 = socket.create_connection(("127.0.0.1", self._node_0), timeout=60)
            self._ends.append(node_0)
            name = socket.gethostname().encode()
            said = b""
            while name not in said:
                for end in select.select([victim, node_0], [], [], 60)[0]:
                    data = end.recv(65536)
                    said = data if end is victim else said
                    (node_0 if end is victim else victim).sendall(data)
            if self._answer:
                victim.sendall(exactly(node_0, self._answer))
            else:
                select.select([node_0], [], [], 1.0)
            self._attack(victim, node_0)


# Node 0's answer, and its empty message when all nodes have come.
ANSWER = len(handshake.REFUSED) + 8 + 32


@pytest.mark.parametrize(
    ("answer", "header", "seal"),
    [
        pytest.param(0, lambda size: struct.pack("!i", size), b"", id="as-multiprocessing-writes-it"),
        pytest.param(ANSWER, lambda size: struct.pack("!B3xI", 2, size), bytes(32), id="as-a-record"),
    ],
)
def test_a_man_in_the_middle_who_relays_the_handshake_cannot_have_a_pickle_loaded(
    script: str, tmp_path: Path, answer: int, header: Callable[[int], bytes], seal: bytes
) -> None:
    witnesses = [tmp_path / "in-node-0", tmp_path / "in-node-1"]

    def attack(node_1: socket.socket, node_0: socket.socket) -> None:
        for end, witness in zip((node_0, node_1), witnesses, strict=True):
            data = pickle.dumps(WritesAFile(str(witness)))
            end.sendall(header(len(data)) + data + seal)

    port = free_port()
    with node(0, port, script, "show") as node_0:
        assert until(lambda: listens(port), 30)
        with Relay(port, answer, attack) as relay, node(1, relay.port, script, "show") as node_1:
            ends = [finish(node_0), finish(node_1)]
    assert not [witness.name for witness in witnesses if witness.exists()]
    assert ends[0][0] != 0
    assert "was not written by the other mp-spawn" in ends[0][2]
    assert ends[1][0] == 1
    assert "believed" in ends[1][2]
    assert "--master-port" in ends[1][2]


@pytest.mark.parametrize("towards", ["node 0", "node 1"])
def test_both_ends_of_a_connection_end_with_an_error_if_one_is_written_into(script: str, towards: str) -> None:
    def attack(node_1: socket.socket, node_0: socket.socket) -> None:
        (node_0 if towards == "node 0" else node_1).sendall(bytes(100))
        try:
            while ends := select.select([node_0, node_1], [], [], 60)[0]:
                for end in ends:
                    data = end.recv(65536)
                    if not data:
                        return
                    with suppress(OSError):  # it has ended; its last words are still to be read
                        (node_0 if end is node_1 else node_1).sendall(data)
        finally:
            for end in node_0, node_1:
                end.shutdown(socket.SHUT_RDWR)

    port = free_port()
    with node(0, port, script, "show") as node_0:
        assert until(lambda: listens(port), 30)
        with Relay(port, ANSWER, attack) as relay, node(1, relay.port, script, "show") as node_1:
            code, _, err = finish(node_0)
            assert code != 0
            assert "was not written by the other mp-spawn" in err
            code, _, err = finish(node_1)
            assert code == 1
            assert "node 0" in err


def test_a_connection_that_is_cut_in_a_record_ends_the_job_with_an_error(script: str) -> None:
    def attack(node_1: socket.socket, node_0: socket.socket) -> None:
        node_0.sendall(node_1.recv(20))
        node_0.shutdown(socket.SHUT_RDWR)
        node_1.shutdown(socket.SHUT_RDWR)

    port = free_port()
    with node(0, port, script, "show") as node_0:
        assert until(lambda: listens(port), 30)
        with Relay(port, ANSWER, attack) as relay, node(1, relay.port, script, "show") as node_1:
            code, _, err = finish(node_0)
            assert code != 0
            assert "closed the connection" in err
            code, _, err = finish(node_1)
            assert code == 1
            assert "closed the connection" in err


def test_a_node_does_not_believe_a_handshake_that_is_its_own_sent_back(script: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, node(1, server.getsockname()[1], script, "show") as node_1:
        server.settimeout(60)
        victim, _ = server.accept()
        with victim:
            victim.sendall(handshake.begin())
            said = victim.recv(1000)
            victim.sendall(handshake.ACCEPTED + said[-handshake.PROOF :])
            code, _, err = finish(node_1)
        assert code == 1
        assert "another key" in err


def test_node_0_does_not_believe_a_handshake_that_it_has_seen_before_or_said_itself() -> None:
    first = handshake.begin()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(first)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            handshake.enter(ours, BYTES_KEY, 1, 0, "name")
        said = theirs.recv(1000)
    introduction = handshake.introduction_in(said)
    assert introduction is not None
    assert introduction[:3] == (1, 0, "name")
    answer, _ = handshake.accept(BYTES_KEY, first, introduction)
    with pytest.raises(handshake.WrongKeyError, match="another key"):
        handshake.accept(BYTES_KEY, handshake.begin(), introduction)
    with pytest.raises(handshake.WrongKeyError, match="another key"):
        handshake.accept(b"another" + BYTES_KEY, first, introduction)
    for at in range(0, len(said), 7):
        with pytest.raises(handshake.WrongKeyError):
            changed = handshake.introduction_in(flipped(said, at))
            handshake.accept(BYTES_KEY, first, changed or introduction._replace(data=bytes(len(said))))
    own = said[: -handshake.PROOF] + answer[1:]
    with pytest.raises(handshake.WrongKeyError, match="another key"):
        handshake.accept(BYTES_KEY, first, introduction._replace(data=own))
    with pytest.raises(handshake.WrongKeyError, match="another version"):
        handshake.introduction_in(b"mp-spawn nodes 2" + said[16:])


# ---- records ---------------------------------------------------------------------------------------------------------


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def records(*messages: bytes) -> list[bytes]:
    """
    Return what node 0 writes for each message.
    """
    ours, theirs = socket.socketpair()
    wire = Wire(ours, Seals(b"k" * 32, b"l" * 32))
    try:
        written = []
        for message in messages:
            wire.send(message)
            written.append(theirs.recv(1 << 16))
        return written
    finally:
        wire.close()
        theirs.close()


@contextmanager
def reader_of(data: bytes, seals: Seals | None = None) -> Iterator[Wire]:
    """
    Return the wire of a node to which *data* comes, and then the end.
    """
    ours, theirs = socket.socketpair()
    wire = Wire(ours, seals or Seals(b"l" * 32, b"k" * 32))
    try:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        yield wire
    finally:
        wire.close()
        theirs.close()


def test_records_come_as_they_were_written() -> None:
    with reader_of(b"".join(records(b"one", b"", b"three"))) as wire:
        assert [bytes(wire.receive()) for _ in range(3)] == [b"one", b"", b"three"]
        with pytest.raises(EOFError):
            wire.receive()


def test_a_record_with_one_bit_changed_is_refused() -> None:
    (record,) = records(b"a message")
    for at in range(len(record)):
        # A longer one ends before it is complete.
        with reader_of(flipped(record, at)) as wire, pytest.raises((TamperedError, EOFError)):
            wire.receive()


@pytest.mark.parametrize("order", [(0, 0), (1,), (1, 0), (0, 2, 1)], ids=["again", "left out", "swapped", "later"])
def test_a_record_that_comes_again_or_not_in_its_turn_is_refused(order: tuple[int, ...]) -> None:
    written = records(b"zero", b"one", b"two")
    with reader_of(b"".join(written[index] for index in order)) as wire, pytest.raises(TamperedError):
        for _ in order:
            wire.receive()


def test_a_record_that_is_sent_back_to_its_writer_is_refused() -> None:
    (record,) = records(b"a message")
    with reader_of(record, Seals(b"k" * 32, b"l" * 32)) as wire, pytest.raises(TamperedError):
        wire.receive()


def test_a_stream_that_ends_in_a_record_or_a_message_is_no_message() -> None:
    (record,) = records(b"a message")
    for size in range(1, len(record)):
        with reader_of(record[:size]) as wire, pytest.raises(EOFError):
            wire.receive()
    whole = through(lambda wire: wire.send(bytes(CHUNK + 1)), 2 * CHUNK)
    with reader_of_much(whole[: 8 + CHUNK + 32]) as wire, pytest.raises(EOFError):
        wire.receive()


def test_a_length_that_nobody_has_sealed_reserves_no_memory() -> None:
    for size in (CHUNK + 1, (1 << 32) - 1):
        with reader_of(struct.pack("!B3xI", 2, size)) as wire, pytest.raises(TamperedError):
            wire.receive()


def through(write: Callable[[Wire], None], room: int) -> bytes:
    """
    Return what *write* writes to a wire.
    """
    ours, theirs = socket.socketpair()
    wire = Wire(ours, Seals(b"k" * 32, b"l" * 32))
    came = bytearray()

    def read() -> None:
        while data := theirs.recv(room):
            came.extend(data)

    thread = threading.Thread(target=read)
    thread.start()
    write(wire)
    wire.close()
    thread.join()
    theirs.close()
    return bytes(came)


@contextmanager
def reader_of_much(data: bytes) -> Iterator[Wire]:
    ours, theirs = socket.socketpair()

    def write() -> None:
        with suppress(OSError):
            theirs.sendall(data)
        theirs.close()

    thread = threading.Thread(target=write)
    thread.start()
    wire = Wire(ours, Seals(b"l" * 32, b"k" * 32))
    try:
        yield wire
    finally:
        wire.shut_down()
        thread.join()
        wire.close()


def test_a_part_with_one_bit_changed_is_refused() -> None:
    part = os.urandom(2 * CHUNK + 5)
    data = through(lambda wire: wire.send_part(memoryview(part)), 1 << 20)

    def read(wire: Wire) -> bytes:
        place = memoryview(bytearray(len(part)))
        offset = 0
        while offset < len(place):
            offset += wire.receive_into(place[offset:])
        return bytes(place)

    with reader_of_much(data) as wire:
        assert read(wire) == part
    for at in (0, 7, 8, CHUNK, CHUNK + 8, CHUNK + 40, len(data) // 2, len(data) - 33, len(data) - 1):
        with reader_of_much(flipped(data, at)) as wire, pytest.raises(TamperedError):
            read(wire)
    with reader_of_much(data[:-1]) as wire, pytest.raises(EOFError):
        read(wire)


def test_no_heartbeat_comes_between_the_parts_of_a_start() -> None:
    ours, theirs = socket.socketpair()
    agents = ConnectedAgents([Wire(ours)], [Node("a", "", range(1))])
    agent = Wire(theirs)

    def parts() -> Iterator[memoryview]:
        for _ in range(3):
            agents.send(0, "a heartbeat of another thread")
            yield memoryview(b"part")

    try:
        agents.start({0: "the start"}, parts())  # type: ignore[arg-type, dict-item]
        while pickle.loads(agent.receive()) != "the start":
            pass
        place = memoryview(bytearray(4))
        assert [(agent.receive_into(place), bytes(place)) for _ in range(3)] == [(4, b"part")] * 3
    finally:
        agent.shut_down()
        agents.close(0)
        agent.close()


# ---- the key and the port --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["0123456789abcdef0123456789abcde", "a" * 64, "12345678" * 4, "sixteen letters!"])
def test_a_key_that_cannot_have_128_random_bits_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="openssl rand -hex 32"):
        place_in_job(NOTHING, SLURM | {"MP_SPAWN_KEY": key})


def test_the_port_of_an_mpi_job_without_a_name_is_no_checksum_of_the_key() -> None:
    """
    The checksums of all keys that differ in some bits differ in the same way, so each port would tell as many bits.
    """
    import zlib

    mpi = {"PMI_SIZE": "2", "PMI_RANK": "0", "MPI_LOCALNRANKS": "2"}
    keys = [os.urandom(32).hex() for _ in range(3)]
    places = [place_in_job(NOTHING, mpi | {"MP_SPAWN_KEY": key}) for key in keys]
    ports = [place.port for place in places if place is not None]
    assert all(20000 <= port < 30000 for port in ports)
    assert ports != [20000 + zlib.crc32(key.encode()) % 10000 for key in keys]


# ---- silent peers ----------------------------------------------------------------------------------------------------


@contextmanager
def silent_peers(port: int, count: int) -> Iterator[None]:
    """
    Connect so often to the port, and say nothing.
    """
    silent = []
    try:
        for _ in range(count):
            peer = socket.socket()
            peer.setblocking(False)
            peer.connect_ex(("127.0.0.1", port))
            silent.append(peer)
        yield
    finally:
        for peer in silent:
            peer.close()


# With few descriptors, accept fails; with many, as many peers as may be are there at once.
@pytest.mark.parametrize("descriptors", [36, 256])
def test_a_node_joins_and_finishes_after_300_silent_peers(script: str, descriptors: int) -> None:
    port = free_port()
    with node(0, port, script, "show", descriptors=descriptors) as node_0:
        assert until(lambda: listens(port), 30)
        with silent_peers(port, 300):
            status = Path(f"/proc/{node_0.pid}/status")
            assert until(lambda: len(os.listdir(f"/proc/{node_0.pid}/fd")) > 20, 10)
            with node(1, port, script, "show") as node_1:
                threads = int(status.read_text().split("Threads:")[1].split()[0])
                code, _, err = finish(node_0)
                assert code == 0, err
                assert finish(node_1)[0] == 0
    assert threads < 10
    lines = [line for line in err.splitlines() if "turned away" in line]
    assert len(lines) <= 1
    assert len(err) < 1000


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_node_0_while_it_waits_for_nodes(script: str, signum: signal.Signals) -> None:
    port = free_port()
    with node(0, port, script, "show") as node_0:
        assert until(lambda: listens(port), 30)
        sent = time.monotonic()
        node_0.send_signal(signum)
        code, _, err = finish(node_0)
        # A second is the promise; a loaded machine adds some to the end of an interpreter.
        assert time.monotonic() - sent < 3.0
        assert code == 128 + signum
        assert signum.name in err


def test_a_node_that_goes_before_the_others_have_come_may_come_again(script: str) -> None:
    port = free_port()
    with node(0, port, script, "show", nodes=3) as node_0:
        assert until(lambda: listens(port), 30)
        assert node_0.stderr is not None
        with socket.create_connection(("127.0.0.1", port), timeout=30) as gone:
            handshake.enter(gone, BYTES_KEY, 1, 0, "name")
        lines = iter(node_0.stderr.readline, "")
        assert any("has gone again" in line for line in lines)
        with node(1, port, script, "show", nodes=3) as node_1, node(2, port, script, "show", nodes=3) as node_2:
            assert [finish(each)[0] for each in (node_0, node_1, node_2)] == [0, 0, 0]


def test_a_node_gives_a_silent_program_at_node_0s_port_no_more_than_its_time_to_join(script: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with node(1, silent.getsockname()[1], "--rdzv-conf", "join_timeout=2", script, "show") as node_1:
            code, _, err = finish(node_1)
    assert (code, "it does not say who it is" in err) == (1, True)
    assert time.monotonic() - began < 10.0
