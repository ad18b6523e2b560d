"""The values of torchrun's rendezvous options: the number of nodes, the place where they meet, and for how long."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from mp_spawn.command.seconds import seconds

BACKENDS = ("static", "c10d")
# Seconds between the first node and the last one.
TO_MEET = 300.0
# Seconds in which more nodes than MIN may come: torchrun's.
LAST_CALL = 30.0
# Of torchrun's own store, in whose place mp-spawn has a connection.
_WITHOUT_EFFECT = (
    "close_timeout",
    "heartbeat_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "read_timeout",
    "store_type",
    "use_libuv",
)


class Nodes(NamedTuple):
    """How many nodes a job may have."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}:{self.most}" if self.least < self.most else str(self.most)


class Conf(NamedTuple):
    """The values of ``--rdzv-conf``."""

    join_timeout: float = TO_MEET
    last_call_timeout: float = LAST_CALL
    #: Whether this node is node 0; None if the endpoint decides.
    is_host: bool | None = None
    rank: int | None = None


def nodes_of(text: str) -> Nodes:
    """
    Return the value of ``--nnodes``.

    >>> nodes_of("2"), nodes_of("1:4")
    (Nodes(least=2, most=2), Nodes(least=1, most=4))
    """
    first, _, last = text.partition(":")
    try:
        nodes = Nodes(int(first), int(last or first))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no number of nodes; give one, or MIN:MAX") from None
    if not 0 < nodes.least <= nodes.most:
        raise argparse.ArgumentTypeError(
            f"{text} is no number of nodes; give 1 or more, and in MIN:MAX the smaller first"
        )
    return nodes


def port_of(text: str) -> int:
    """
    Return the value of ``--master-port``.

    >>> port_of("29400")
    29400
    """
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port; give a number from 0 to 65535")
    return int(text)


def endpoint_of(text: str) -> tuple[str | None, int | None]:
    """
    Return the host and the port of ``--rdzv-endpoint``; None for the one that is missing.

    >>> endpoint_of("node0:29400"), endpoint_of("[::1]"), endpoint_of("node0:0")
    (('node0', 29400), ('::1', None), ('node0', None))
    """
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, ""
    if port and not port.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is no place to meet; give HOST:PORT")
    return host.strip("[]") or None, port_of(port or "0") or None


def conf_of(text: str) -> Conf:
    """
    Return the values of ``--rdzv-conf``.

    >>> conf_of("join_timeout=60,read_timeout=5").join_timeout
    60.0
    """
    values: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        name, _, value = (part.strip() for part in pair.partition("="))
        try:
            match name:
                case "join_timeout" | "timeout":
                    values["join_timeout"] = seconds(value)
                case "last_call_timeout":
                    values[name] = seconds(value)
                case "is_host":
                    values[name] = {"1": True, "true": True, "0": False, "false": False}[value.lower()]
                case "rank":
                    values[name] = int(value)
                case _ if name not in _WITHOUT_EFFECT:
                    known = ", ".join(sorted({*Conf._fields, *_WITHOUT_EFFECT}))
                    raise argparse.ArgumentTypeError(f"{name} is not known; give some of {known}")
        except (KeyError, ValueError):
            raise argparse.ArgumentTypeError(f"{pair} has no value that {name} can have") from None
    return Conf(**values)
