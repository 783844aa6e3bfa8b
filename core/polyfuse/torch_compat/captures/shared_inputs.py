"""Inputs that share memory, where a graph writes to one.

AOTAutograd traces such a graph with one tensor instead of the inputs that overlap, and takes them for
the views of it that they are while it traces. Nothing guards where they begin in that memory, nor how much of
it there is. Here Dynamo guards the first, so that it traces again, and each call compares the rest: the graph
runs as it was captured where its inputs share their memory otherwise. Inputs that lie apart, in one memory or
several, are compared by `written_inputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch._guards import TracingContext
from torch.fx import GraphModule, Node

from polyfuse.torch_compat.captures.written_inputs import part_of_memory, really_overlap
from polyfuse.torch_compat.tracing.dynamo import guard_offset

Memory: TypeAlias = tuple[Any, ...]
"""How much memory an input lies in, and the layout of what it is a view of."""


class SharedInputs:
    """The inputs of a graph that overlap.

    Args:
        gm: the graph that Dynamo captured.
        overlapping: positions of inputs; those of one group lie in the same memory, and some of them
            overlap, so that AOTAutograd traces one tensor instead of them.
        examples: what the graph was captured with, by position.

    Attributes:
        refused: why AOTAutograd cannot trace the graph, or None.
    """

    def __init__(
        self, gm: GraphModule, overlapping: Sequence[Sequence[int]], examples: Sequence[torch.Tensor]
    ) -> None:
        self._gm = gm
        self.overlapping = overlapping
        self._known = {i: _memory(examples[i]) for group in overlapping for i in group}
        refused = (_refused([examples[i] for i in group]) for group in overlapping)
        self.refused = next((reason for reason in refused if reason), None)

    @contextmanager
    def traced(self) -> Iterator[None]:
        """While AOTAutograd traces: results that are views are made anew by their strides. What it does else,
        to view again as the graph did, would begin at the one tensor and not at the input."""
        import torch._functorch.config as functorch

        with functorch.patch(view_replay_for_aliased_outputs=False):
            yield

    def checked(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled graph, for calls whose inputs share memory as those did that it was traced with."""
        overlapping, known, captured = self.overlapping, self._known, self._gm.forward

        @wraps(compiled)
        def call(*args: Any) -> Any:
            for group in overlapping:
                address = args[group[0]].untyped_storage().data_ptr()
                for i in group:
                    if args[i].untyped_storage().data_ptr() != address or _memory(args[i]) != known[i]:
                        return captured(*args)
            return compiled(*args)

        return call


def shared_and_written(gm: Any) -> SharedInputs | None:
    """The inputs that overlap, if the graph may write to some input; None if there are none.

    Dynamo then guards where they begin in their memory.
    """
    context = TracingContext.try_get()
    if context is None or not isinstance(gm, GraphModule):
        return None
    nodes = gm.graph.find_nodes(op="placeholder")
    arguments = [node.meta.get("grapharg") for node in nodes]
    examples: list[Any] = [getattr(a, "example", None) if a is not None else None for a in arguments]
    together: dict[int, list[int]] = {}
    for i, example in enumerate(examples):
        if type(example) in (torch.Tensor, torch.nn.Parameter) and example.layout is torch.strided:
            together.setdefault(example.untyped_storage()._cdata, []).append(i)
    shared = [group for group in together.values() if len(group) > 1]
    overlapping = [group for group in shared if _overlap([examples[i] for i in group])]
    if not overlapping or not _writes(gm):
        return None
    for i in (i for group in overlapping for i in group):
        guard_offset(arguments[i].source, context)
    return SharedInputs(gm, overlapping, examples)


def _memory(tensor: torch.Tensor) -> Memory:
    base = tensor._base
    layout = None if base is None else (base.shape, base.stride(), base.storage_offset())
    return tensor.untyped_storage().nbytes(), layout


def _overlap(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether any two overlap, of which each lies in the same memory."""
    parts = sorted(map(part_of_memory, tensors))
    return any(end > after for (_, end), (after, _) in pairwise(parts)) and really_overlap(tensors)


def _refused(tensors: Sequence[torch.Tensor]) -> str | None:
    bases = [tensor if tensor._base is None else tensor._base for tensor in tensors]
    if any(base is not bases[0] for base in bases):
        return "inputs that overlap and are no views of one tensor"
    if any(tensor.dtype is not bases[0].dtype for tensor in tensors):
        return "inputs that overlap and have different types"
    return None


def _writes(gm: GraphModule) -> bool:
    """Whether the graph, or one inside it, may write in place, by names and schemas of operators."""
    modules = [module for module in gm.modules() if isinstance(module, GraphModule)]
    return any(_may_write(node) for module in modules for node in module.graph.nodes)


def _may_write(node: Node) -> bool:
    if node.op not in ("call_method", "call_function", "call_module"):
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    # functions write to `out`, norms to what they gather, modules and operators of others to anything
    home = str(getattr(node.target, "__module__", "torch") or "torch")
    foreign = node.op == "call_module" or not home.startswith(("torch", "_operator", "math", "builtins"))
    packet = isinstance(node.target, torch._ops.OpOverloadPacket)
    return (
        name.endswith("_") or name in IN_PLACE or "out" in node.kwargs or "norm" in name or foreign or packet
    )


_OPERATORS = "add and floordiv lshift matmul mod mul or pow rshift sub truediv xor"
IN_PLACE = frozenset(("setitem", *(f"i{name}" for name in _OPERATORS.split())))
"""Names of functions that write to their first argument, besides those that end in an underscore."""
