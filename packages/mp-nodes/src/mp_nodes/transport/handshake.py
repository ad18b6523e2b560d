"""The handshake between node 0 and another node: who has the key, and the keys of this one connection.

Note [Handshake]
----------------
    node 0  ->  node      WORDS, 32 random bytes
    node    ->  node 0    WORDS, 32 random bytes, its number, that of its ranks, its name, proof of the node
    node 0  ->  node      ACCEPTED, proof of node 0; or REFUSED

A proof is HMAC-SHA256 with the shared key over the role of its writer and everything sent before, so also over the
other end's random bytes: an earlier one proves nothing, and neither does one that is sent back to its writer, whose
role differs. The protocol's version is a part of WORDS. The node proves first, so that node 0 tells nobody else
anything that depends on the key.

The key of each direction is an HMAC of the direction's name and the whole handshake. A program that relays the
handshake, since it has bound the port first, learns neither of them, so no record (wire.py) of its own fits.

REFUSED cannot be proved: it only makes the error come at once, where silence would do it after some seconds.

A recorded handshake lets its owner try keys at leisure. So a key has 128 random bits or more (job_place.py).
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from typing import NamedTuple

from mp_nodes.transport.wire import Seals

# 16 bytes: the last are the version of handshake and records together.
WORDS = b"mp-spawn nodes 3"
CHALLENGE = 32
PROOF = 32
ACCEPTED, REFUSED = b"\x01", b"\x00" * (1 + PROOF)
_FIELDS = struct.Struct("!IIB")
_BEFORE_NAME = len(WORDS) + CHALLENGE + _FIELDS.size
#: The most bytes that a peer can send before it has proved that it has the key.
MOST = _BEFORE_NAME + 255 + PROOF


class WrongKeyError(Exception):
    """The peer does not have the key, or is no mp-spawn of this version; the text says which."""


class Introduction(NamedTuple):
    """The words of a node about itself."""

    node_rank: int
    #: How many ranks it asks for; 0 if node 0 is to tell.
    ranks: int
    name: str
    data: bytes


def begin() -> bytes:
    """Return node 0's first message."""
    return WORDS + secrets.token_bytes(CHALLENGE)


def introduction_in(came: bytes) -> Introduction | None:
    """
    Return the introduction that a peer has sent; None if the rest has not come yet.

    >>> introduction_in(WORDS[:4])
    """
    _check_words(came)
    if len(came) < _BEFORE_NAME:
        return None
    node_rank, ranks, length = _FIELDS.unpack_from(came, _BEFORE_NAME - _FIELDS.size)
    size = _BEFORE_NAME + length + PROOF
    if len(came) < size:
        return None
    if len(came) > size:
        raise WrongKeyError("it said more than an introduction")
    name = came[_BEFORE_NAME : _BEFORE_NAME + length].decode(errors="replace")
    return Introduction(node_rank, ranks, name, came)


def accept(key: bytes, first: bytes, introduction: Introduction) -> tuple[bytes, Seals]:
    """Check the proof of a node; return node 0's answer and its keys. Raise `WrongKeyError` for a wrong proof."""
    data = introduction.data
    if not hmac.compare_digest(_hmac(key, b"proof of the node", first + data[:-PROOF]), data[-PROOF:]):
        raise WrongKeyError("it has another key")
    answer = ACCEPTED + _hmac(key, b"proof of node 0", first + data)
    from_node_0, to_node_0 = _keys(key, first + data + answer)
    return answer, Seals(from_node_0, to_node_0)


def enter(peer: socket.socket, key: bytes, node_rank: int, ranks: int, name: str) -> Seals:
    """
    Do the node's part: prove who this is to node 0, and have it prove who it is; return the keys.

    Raise `WrongKeyError`, `EOFError` if the peer closes the connection without an answer, and `OSError`.
    """
    first = _exactly(peer, len(WORDS) + CHALLENGE)
    _check_words(first)
    called = name.encode()[:255]
    data = begin() + _FIELDS.pack(node_rank, ranks, len(called)) + called
    data += _hmac(key, b"proof of the node", first + data)
    peer.sendall(data)
    answer = _exactly(peer, len(REFUSED))
    if not hmac.compare_digest(answer, ACCEPTED + _hmac(key, b"proof of node 0", first + data)):
        raise WrongKeyError("it has another key")
    from_node_0, to_node_0 = _keys(key, first + data + answer)
    return Seals(to_node_0, from_node_0)


def _hmac(key: bytes, role: bytes, said: bytes) -> bytes:
    # The length, so that no role and text is another role and text.
    return hmac.digest(key, b"mp-spawn %d %s %s" % (len(role), role, said), "sha256")


def _keys(key: bytes, handshake: bytes) -> tuple[bytes, bytes]:
    return _hmac(key, b"records from node 0", handshake), _hmac(key, b"records to node 0", handshake)


def _check_words(came: bytes) -> None:
    said = came[: len(WORDS)]
    if said == WORDS[: len(said)]:
        return
    if said[:-1] == WORDS[: len(said) - 1] or b"#CHALLENGE#" in said:
        raise WrongKeyError("it has another version of mp-spawn; install the same one on all nodes")
    raise WrongKeyError("it is no mp-spawn")


def _exactly(peer: socket.socket, size: int) -> bytes:
    came = b""
    while len(came) < size:
        more = peer.recv(size - len(came))
        if not more:
            raise EOFError
        came += more
    return came
