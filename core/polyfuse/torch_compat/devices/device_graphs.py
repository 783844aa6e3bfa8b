"""What recording the work of a device needs of torch, whatever the device: the storage of tensors, mostly.

A recording writes to the same addresses whoever holds tensors there, so this is about memory whose owner is
not a tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class SeenCalls(TorchDispatchMode):
    """Lets `before` see each operator that is called, those of higher order as well, before it runs."""

    supports_higher_order_operators = True

    def __init__(self, before: Callable[[Any], None]) -> None:
        super().__init__()
        self._before = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._before(func)
        return func(*args, **(kwargs or {}))


def unsafe_to_record(op: Any) -> bool:
    """Whether an operator's author says that it must not be recorded."""
    tag = getattr(torch.Tag, "cudagraph_unsafe", None)
    return tag is not None and tag in getattr(op, "tags", ())


def step_number() -> int:
    """How often `torch.compiler.cudagraph_mark_step_begin` was called.

    torch counts in a module that it loads for the first such call, so that until then there is nothing to
    read.
    """
    module = sys.modules.get("torch._inductor.cudagraph_trees")
    return abs(module.MarkStepBox.mark_step_counter) if module is not None else 0


@contextmanager
def outside_inference() -> Iterator[None]:
    """For tensors that outlive the call: neither inference tensors nor part of a derivative."""
    with torch.inference_mode(False), torch.no_grad():
        yield


storage_use: Callable[[int], int] = torch._C._storage_Use_Count
"""How many hold the storage whose `_cdata` is the argument: tensors, and Python's own object for it."""


def storage_at(address: int, nbytes: int, device: torch.device) -> torch.UntypedStorage:
    """A storage at an address that somebody else owns."""
    storage: torch.UntypedStorage = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
    return storage


def storage_size(tensor: torch.Tensor) -> int:
    """Bytes of a storage that begins where a tensor does, and ends where it ends."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (1 + last) * tensor.element_size() if tensor.numel() else 0


def memory_like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor laid out like another one, in new memory. Nothing is written there, neither now nor, if this
    is recorded, by a replay, as deterministic algorithms would have it of `torch.empty`.
    """
    nbytes = storage_size(tensor)
    with outside_inference():
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        storage = torch.UntypedStorage(nbytes, device=tensor.device)
        return made.set_(storage, 0, tensor.shape, tensor.stride())


def forbid_access(storage: torch.UntypedStorage, tensor: torch.Tensor, message: str) -> None:
    """Make every use of `tensor`'s storage an error, as far as this torch can do that."""
    by_storage = getattr(torch._C, "_set_storage_data_ptr_access_error_msg", None)
    if by_storage is not None:
        by_storage(storage._cdata, message)
    else:
        torch._C._set_throw_on_mutable_data_ptr(tensor)


def _same_addresses(args: list[Any], addresses: list[int | None], positions: list[int]) -> bool:
    return all(args[i].data_ptr() == addresses[i] for i in positions)


same_addresses: Callable[[list[Any], list[int | None], list[int]], bool] = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", _same_addresses
)
"""`(args, addresses, positions) -> bool`: whether the tensors at `positions` of `args` begin at the addresses
that stand at the same positions of `addresses`. Builds for devices have it in C++. Older torches take lists
alone."""


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy many tensors at once; no derivative knows of it."""
    if torch.is_grad_enabled():
        with torch.no_grad():
            copy_all(targets, sources)
    elif len(targets) == 1:
        targets[0].copy_(sources[0])
    elif targets:
        torch._foreach_copy_(list(targets), list(sources))


def backward_may_repeat() -> bool:
    """Whether what the forward saved for the running backward is retained for another one."""
    retains_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return retains_graph is None or bool(retains_graph())
