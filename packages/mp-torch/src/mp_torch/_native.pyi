from collections.abc import Callable
from typing import Any

def setup_storages(
    exchange: Any,
    tensor_type: type,
    storage_type: type,
    is_shared: Callable[[Any], bool],
    adopt: Callable[[Any, Any], None],
    users_of_storage: Callable[[int], int],
    /,
) -> None: ...
def move_storage(storage: Any, tensor: Any, /) -> int: ...
def remember_storage(storage: Any, address: int, /) -> None: ...
def find_storage(address: int, nbytes: int, /) -> Any: ...
def setup_tensors(
    exchange: Any,
    tensor_type: type,
    reducer: Callable[[Any], Any],
    dtypes: frozenset[Any],
    rebuild: Callable[[bytes, bytes], Any],
    /,
) -> None: ...
def receive_tensor(handle: bytes, layout: bytes, /) -> Any: ...
