from typing import Any

__file__: str
ffi: Any
lib: Any
