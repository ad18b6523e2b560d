"""Settings in the environment: every variable that the Python code of these packages reads is read here.

Those of a job's place (RANK, MASTER_ADDR, MP_SPAWN_KEY, ...) are no settings but messages of a launcher to its ranks,
see `mp_nodes.engines.environment`. The file that starts with every Python reads MP_ALL itself, and libshm its own
variables (`libshm/src/base/settings.c`). A wrong value is an error when the package is imported, or when what it sets
is imported. `docs/reference/environment.rst` has a line for each variable.
"""

from __future__ import annotations

import os


def is_set(variable: str) -> bool:
    """
    Return whether *variable* is in the environment, with any text but the empty one.

    >>> is_set("MP_NO_SUCH_SETTING")
    False
    """
    return bool(os.environ.get(variable))


# What turns a switch on and off, in upper or lower case. `_mp_all_startup` has the same.
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def is_on(variable: str, wanted: str = "1 or 0", default: bool = False) -> bool:
    """
    Return whether the switch *variable* is on: 1, true, yes or on, rather than 0, false, no or off.

    Another text is a `ValueError`, which says what is *wanted*; without one it is the *default*.

    >>> is_on("MP_NO_SUCH_SETTING")
    False
    """
    text = os.environ.get(variable, "").lower()
    if text and text not in _ON + _OFF:
        raise ValueError(f"{variable} must be {wanted}, not {os.environ[variable]!r}")
    return text in _ON if text else default


def parse_bytes(text: str) -> int:
    """
    Return the number of bytes that *text* means; libshm reads it likewise.

    Parameters
    ----------
    text : str
        Digits with an optional fraction and unit: ``K`` and ``KiB`` are 1024, ``kB`` is 1000, and so on up to ``P``.
        Upper and lower case are the same.

    Returns
    -------
    int
        0 or more, below 2**64.

    Raises
    ------
    ValueError
        *text* is not a number of bytes.

    Examples
    --------
    >>> parse_bytes("512 MiB"), parse_bytes("1.5k"), parse_bytes("100kB")
    (536870912, 1536, 100000)
    """
    import re  # few programs set one

    number = r"[ \t]*(?=\.?\d)(\d*)\.?(\d*)[ \t]*(?:([kmgtp])(i?b?)|b|bytes)?[ \t\n]*"
    found = re.fullmatch(number, text, re.IGNORECASE | re.ASCII)
    nbytes = 2**64
    if found is not None:
        whole, fraction, letter, rest = found.groups()
        unit = 1
        if letter:
            unit = (1000 if rest.lower() == "b" else 1024) ** ("kmgtp".index(letter.lower()) + 1)
        digits = f"{fraction:0<6}"[:6]
        nbytes = int(whole or 0) * unit + unit * int(digits) // 10**6
    if nbytes >= 2**64:
        raise ValueError(f"{text!r} is not a number of bytes below 2**64; give a value like 1073741824, 512MiB or 2G")
    return nbytes


def _bytes_of(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    if not text:
        return None
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None


# ---- what is shared, and how -----------------------------------------------------------------------------------------


def without_libshm() -> bool:
    """Return whether ``MP_WITHOUT_LIBSHM=1`` asks for portable sharing where libshm runs."""
    return is_on("MP_WITHOUT_LIBSHM", "1 for portable sharing, or 0")


def shares() -> bool:
    """Return whether messages carry shared memory, as they do unless ``MP_SHARE=0``."""
    return is_on("MP_SHARE", "1 to share memory or 0 to send by value", default=True)


def sharing_strategy() -> str:
    """Return the text of `MP_SHARING_STRATEGY`, empty for the platform's default; `strategy.py` checks it."""
    return os.environ.get("MP_SHARING_STRATEGY", "")


def cache_bytes() -> int | None:
    """Return the limit of the cache in bytes from `MP_CACHE_BYTES`; None for the default."""
    return _bytes_of("MP_CACHE_BYTES")


def inline_bytes() -> int | None:
    """Return the bytes of private arrays that a message itself takes, from `MP_INLINE_BYTES`; None for the default."""
    return _bytes_of("MP_INLINE_BYTES")


def shared_allocator() -> bool:
    """Return whether ``MP_SHARED_ALLOCATOR=1`` has NumPy allocate in shared memory."""
    return is_on("MP_SHARED_ALLOCATOR")


def dumps_shared_memory() -> bool:
    """Return whether ``MPSHM_DUMP=1`` has core dumps include shared memory; libshm reads it likewise."""
    return is_on("MPSHM_DUMP")


def runtime_root() -> str:
    """Return the folder in `MPSHM_RUNTIME_DIR`, empty for the default, which is ``/tmp``."""
    return os.environ.get("MPSHM_RUNTIME_DIR", "")


def runtime_folder() -> str:
    """Return the folder of this user's sockets, control files and locks, which is made when it is needed."""
    return os.path.join(runtime_root() or "/tmp", f"mpshm-{os.geteuid()}")


# ---- messages --------------------------------------------------------------------------------------------------------


def channels_enabled() -> bool:
    """Return whether messages of pipes and queues pass through a ring, as they do unless ``MP_CHANNEL=0``."""
    return is_on("MP_CHANNEL", "1 for channels or 0 for ordinary pipes", default=True)


def strict_put() -> bool:
    """Return whether ``MP_STRICT_PUT=1`` has `Queue.put` raise the errors of pickling."""
    return is_on("MP_STRICT_PUT", "1 to let put() raise the errors of pickling or 0")


def message_timeout() -> float | None:
    """Return after how many seconds messages expire, from `MP_MESSAGE_TIMEOUT`; None if they do not."""
    text = os.environ.get("MP_MESSAGE_TIMEOUT", "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"MP_MESSAGE_TIMEOUT: {text!r} is not a number of seconds above 0")
    return seconds


def spin_us() -> int | None:
    """Return for how many microseconds a wait spins at most, from `MP_SPIN_US`, which libshm reads; None for 50."""
    text = os.environ.get("MP_SPIN_US", "")
    if text and not (text.isdecimal() and int(text) <= 1_000_000):
        raise ValueError(f"MP_SPIN_US: {text!r} is not a whole number of microseconds from 0 to 1000000")
    return int(text) if text else None


def traces() -> bool:
    """Return whether ``MP_TRACE=1`` has each message note the line that sends it."""
    return is_on("MP_TRACE")


def timeline() -> tuple[str, str]:
    """Return where `MP_TIMELINE` wants a report, and the run of a parent (`MP_TIMELINE_RUN`); empty texts for none."""
    return os.environ.get("MP_TIMELINE", ""), os.environ.get("MP_TIMELINE_RUN", "")


# ---- the check -------------------------------------------------------------------------------------------------------

#: Variables for which this module knows whether a value is right; the others are checked by what they set.
_CHECKED = (
    cache_bytes,
    channels_enabled,
    dumps_shared_memory,
    inline_bytes,
    message_timeout,
    shared_allocator,
    shares,
    spin_us,
    strict_put,
    traces,
)
#: All names that these packages and libshm read; mp_all adds its own.
KNOWN = {
    "MPSHM_DUMP",
    "MPSHM_RUNTIME_DIR",
    "MPSHM_SEGMENT_BYTES",
    "MP_ALL",
    "MP_CACHE_BYTES",
    "MP_CHANNEL",
    "MP_INLINE_BYTES",
    "MP_MESSAGE_TIMEOUT",
    "MP_SHARE",
    "MP_SHARED_ALLOCATOR",
    "MP_SHARING_STRATEGY",
    "MP_SPAWN_INSIDE",
    "MP_SPAWN_KEY",
    "MP_SPAWN_PARALLEL_START",
    "MP_SPIN_US",
    "MP_STRICT_PUT",
    "MP_TIMELINE",
    "MP_TIMELINE_PRINT",
    "MP_TIMELINE_RUN",
    "MP_TRACE",
    "MP_WITHOUT_LIBSHM",
}


def check() -> None:
    """
    Raise `ValueError` for the first variable with a wrong value; warn of a name that is nearly one of ours.

    >>> check()
    """
    for setting in _CHECKED:
        setting()
    for name, meant in unknown():
        if meant:
            import warnings
            from multiprocessing import process

            if not getattr(process.current_process(), "_inheriting", False):  # the parent of a child has warned
                warnings.warn(f"{name} in the environment is not read: did you mean {meant}?", stacklevel=2)


def unknown() -> list[tuple[str, str]]:
    """
    Return the names in the environment that begin like ours and are not, each with the one that is meant, or "".

    >>> unknown()
    []
    """
    names = [name for name in os.environ if name.startswith(("MP_", "MPSHM_")) and name not in KNOWN]
    if not names:
        return []
    from difflib import get_close_matches

    # With the same first words, as MP_INLINE_LIMIT, much of the last may differ.
    ours = sorted(KNOWN)
    alike = {name: [each for each in ours if _stem(each) == _stem(name) not in ("MP", "MPSHM")] for name in names}
    near = {name: get_close_matches(name, ours, 1, 0.8) or alike[name] for name in sorted(names)}
    return [(name, next(iter(found), "")) for name, found in near.items()]


def _stem(name: str) -> str:
    return name.rpartition("_")[0]
