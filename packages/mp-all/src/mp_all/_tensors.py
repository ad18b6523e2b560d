"""torch's tensors over a Block, without mp-torch: they are sent as that Block, and torch sends all others.

Nothing here imports torch. When torch registers its reducers (at its import, before or after ours), `_stand_before`
puts a reducer in front of torch's for `Tensor` and `Parameter`. A tensor on the CPU that lies in a Block, because it
was made by ``torch.from_numpy(shared_array)`` or received as such, is sent as that Block: no copy, and the same memory
on all sides. torch would first copy it into a file of its own. torch handles all other tensors, and raises its errors.
What forked workers have of a notebook's tensors is told by a look at them, see `mp_core.messages.inherited_globals`.

Both have one sharing strategy: setting ours sets torch's, once torch is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from mp_core.memory.block import Block, block_at
from mp_core.messages import contents
from mp_core.sharing import strategy
from mp_core.sharing.backend import by_value
from mp_core.system import packages, reducers


def init_reductions() -> None:
    """Send tensors over a Block as that Block, in this process and in children started from now on."""
    packages.register(__name__, "torch")
    reducers.when_registered("torch", _stand_before)
    for module, name in (("torch", "Tensor"), ("torch.nn.parameter", "Parameter")):
        contents.register(module, name, _see)
    for name in ("dtype", "device", "memory_format", "layout"):
        contents.register("torch", name, contents.see_identity)


def _stand_before(kind: type, theirs: reducers.Reducer) -> reducers.Reducer:
    """Return the reducer for torch's class *kind*, for which torch has registered *theirs*."""
    strategy.followed_by(_set_torchs_strategy)
    if kind.__name__ not in ("Tensor", "Parameter") or getattr(theirs, "_stands_before", False):
        return theirs

    def reduce(tensor: Any) -> Any:
        return (None if by_value() else _reduce_tensor(tensor)) or _present(theirs)(tensor)

    reduce._stands_before = True  # type: ignore[attr-defined]
    reduce.finds_default = True  # type: ignore[attr-defined]
    return reduce


def _see(seen: contents.Contents, tensor: Any) -> None:
    """Look at a tensor that is a notebook's global."""
    torch: Any = sys.modules["torch"]
    modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()  # they run the program's code
    seen.see_definition(type(tensor))
    if tensor.grad_fn is not None:  # it cannot travel
        seen.objects.append(tensor)
        return
    if modes or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        seen.see_unknown(tensor)
        return
    seen.values += tuple(tensor.shape), tensor.stride(), tensor.requires_grad
    seen.see_all([tensor.dtype, tensor.grad, vars(tensor), tensor._backward_hooks])
    if tensor.is_shared() or block_at(tensor.data_ptr()) is not None:
        seen.objects.append(tensor)
    else:
        raw = tensor.detach()
        seen.see_elements((raw.view(torch.int16) if raw.dtype is torch.bfloat16 else raw).numpy())


def _present(theirs: reducers.Reducer) -> reducers.Reducer:
    """Return what is in the place of torch's reducer in torch's module now: mp-cuda may have put its own there."""
    if theirs.__module__.partition(".")[0] != "torch":
        return theirs
    present: reducers.Reducer = getattr(sys.modules[theirs.__module__], theirs.__name__, theirs)
    return present


def _set_torchs_strategy(name: str) -> None:
    torch_multiprocessing = sys.modules.get("torch.multiprocessing")
    # The module may register in the middle of its import; it has defined the function by then.
    if torch_multiprocessing is not None:
        torch_multiprocessing.set_sharing_strategy(name)


def _reduce_tensor(tensor: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    torch = sys.modules["torch"]
    if (
        tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or (tensor.requires_grad and not tensor.is_leaf)
        or tensor._backward_hooks
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return None
    storage = tensor.untyped_storage()
    nbytes = storage.nbytes()
    block = block_at(storage.data_ptr()) if nbytes else None
    if block is None:
        return None
    offset = storage.data_ptr() - block.address
    if offset + nbytes > block.nbytes:
        return None
    return rebuild_tensor, (
        type(tensor),
        block,
        offset,
        nbytes,
        tensor.dtype,
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.requires_grad,
    )


def rebuild_tensor(
    kind: Any,
    block: Block,
    offset: int,
    nbytes: int,
    dtype: Any,
    start: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
) -> Any:
    """Rebuild a tensor over *block*. A handle that reaches beyond it is a `ValueError` or a `RuntimeError`."""
    import torch  # a process that receives a tensor has torch; the sender had

    memory = memoryview(block)[offset : offset + nbytes]
    if offset < 0 or memory.nbytes != nbytes:
        raise ValueError(f"the handle of a tensor is damaged: {nbytes} bytes at {offset} of {block.nbytes}")
    storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    # torch checks bounds only for storage that cannot grow, such as this foreign one.
    tensor: Any = torch.empty(0, dtype=dtype, device="cpu").set_(storage, start, shape, strides)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)
