"""Which storages a function makes in eager mode, and when they die: run on fake tensors, it computes nothing
and needs no memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class EagerStorage:
    """One storage.

    Attributes:
        op: the operator that made it.
        nbytes: its size.
        first: the operator, counted from 0, that made it.
        last: the operator after which it was gone; None: it outlived the run.
    """

    op: str
    nbytes: int
    first: int
    last: int | None = None


@dataclass
class EagerTrace:
    """What a run made.

    Attributes:
        storages: in the order in which they came into being.
        ops: how many operators ran.
        forward: how many of these before the backward.
    """

    storages: list[EagerStorage] = field(default_factory=list)
    ops: int = 0
    forward: int = 0


class _Tracker(TorchDispatchMode):
    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.trace = EagerTrace()
        self._known = known

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._see(str(func), leaf)
        self.trace.ops += 1
        return out

    def _see(self, op: str, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        made = EagerStorage(op, storage.nbytes(), self.trace.ops)
        self.trace.storages.append(made)
        weakref.finalize(storage, self._gone, key, made)

    def _gone(self, key: int, made: EagerStorage) -> None:
        self._known.discard(key)
        made.last = max(self.trace.ops - 1, made.first)


def trace_storages(
    function: Callable[..., Any], make_inputs: Callable[[], Sequence[Any]], backward: bool
) -> EagerTrace:
    """Run a function on fake tensors and note each storage that it makes; those of inputs do not count.

    Args:
        function: takes the inputs and returns a tuple.
        make_inputs: makes them; called where new tensors are fake.
        backward: whether the gradients of the inputs are computed too.

    Raises:
        Exception: whatever the function raises on fake tensors.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = list(make_inputs())
        known = {x.untyped_storage()._cdata for x in inputs if isinstance(x, torch.Tensor)}
        tracker = _Tracker(known)
        with torch.set_grad_enabled(backward), tracker:
            out = function(*inputs)
        del function
        tracker.trace.forward = tracker.trace.ops
        ends = [
            x for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor) and x.requires_grad
        ]
        if backward and ends:
            tangents = [torch.ones_like(x) for x in ends]
            known.update(x.untyped_storage()._cdata for x in tangents)
            with tracker:
                torch.autograd.backward(ends, tangents)
        alive = [(x, x.grad) for x in inputs if isinstance(x, torch.Tensor) and x.is_leaf]
        trace = tracker.trace
        storages = [EagerStorage(s.op, s.nbytes, s.first, s.last) for s in trace.storages]
        del alive, ends, out, inputs
    return EagerTrace(storages, trace.ops, trace.forward)
