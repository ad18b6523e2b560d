"""The engines by their names, as ``engine=`` takes them."""

from __future__ import annotations

from typing import Any


def engine_for(engine: Any) -> Any:
    """
    Return the engine of that name; an engine is returned as it is.

    >>> engine_for("local").nodes
    1
    """
    if engine == "local":
        from mp_nodes.engines.local import Local

        return Local()
    if engine == "ray":
        from mp_nodes.engines.ray import Ray

        return Ray()
    if isinstance(engine, str):
        raise ValueError(f"engine={engine!r} is unknown; give 'local', 'ray', or an object like engines.Ray(nodes=4)")
    if not hasattr(engine, "place"):
        raise TypeError(f"engine={engine!r} is no engine; give 'local', 'ray', or an object like engines.Ray(nodes=4)")
    return engine
