"""Inputs that a graph writes to, which overlapped no other input when it was traced.

AOTAutograd looks for overlaps among inputs of one memory only, and nothing guards that inputs of different
memories stay so: a later call may pass two views of one tensor. So each call of a graph that writes to an
input compares where its inputs lie, and runs the graph as it was captured where a written one overlaps
another. Graphs that write nothing pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from itertools import combinations, islice, pairwise
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch._prims_common import compute_required_storage_length
from torch.fx import GraphModule

from polyfuse.base.errors import InputLayoutError
from polyfuse.torch_compat.tracing import shapes

_MOST = 256
"""So many calls are remembered, by the addresses of their inputs."""

_FEW = 6
"""So many pairs are compared one by one; of more, or where sizes vary, addresses are looked up first."""

_address = torch.Tensor.data_ptr

Groups: TypeAlias = Sequence[Sequence[int]]


@dataclass(frozen=True)
class InputMemory:
    """What is known of the inputs of a graph before a call, as data that is stored beside the graph.

    Attributes:
        count: of all inputs.
        tensors: positions of those that have elements in memory of their own.
        spans: bytes from the first element of each to behind its last; None: sizes vary.
        numbers: positions of integers that sizes are made of; None: some are made of others.
        together: positions of inputs that were traced as parts of one tensor, group by group.
    """

    count: int
    tensors: tuple[int, ...]
    spans: tuple[int, ...] | None
    numbers: tuple[int, ...] | None
    together: Groups = ()

    def written(self, metadata: Any) -> frozenset[int]:
        """Positions of inputs whose elements the graph writes, by what AOTAutograd found out about it. Where
        it traced one tensor instead of several, all count."""
        if metadata is None or not any(info.mutates_data for info in metadata.input_info):
            return frozenset()
        if self.together or len(metadata.input_info) != self.count:
            return frozenset(self.tensors)
        written = (i for i, info in enumerate(metadata.input_info) if info.mutates_data)
        return frozenset(self.tensors).intersection(written)


def input_memory(gm: Any, examples: Sequence[Any], together: Groups = ()) -> InputMemory:
    """What is known of the inputs of a captured graph, from examples of them, which may be fake."""
    from torch._subclasses.fake_tensor import FakeTensor

    nodes = gm.graph.find_nodes(op="placeholder") if isinstance(gm, GraphModule) else []
    given = [getattr(node.meta.get("grapharg"), "example", None) for node in nodes]
    kinds = (torch.Tensor, torch.nn.Parameter, FakeTensor)
    tensors = tuple(
        i
        for i, x in enumerate(examples)
        if type(x) in kinds
        and x.layout is torch.strided
        and (len(given) != len(examples) or given[i] is None or type(given[i]) in kinds)
    )
    symbols = {symbol for i in tensors for symbol in shapes.free_symbols(examples[i])}
    numbers = tuple(i for i, x in enumerate(examples) if isinstance(x, int | torch.SymInt))
    passed = {shapes.expr_of(examples[i]) for i in numbers}
    spans = None if symbols else tuple(_span(examples[i]) for i in tensors)
    return InputMemory(len(examples), tensors, spans, numbers if symbols <= passed else None, together)


def with_written_apart(
    compiled: Callable[..., Any], otherwise: Callable[..., Any], memory: InputMemory, metadata: Any
) -> Callable[..., Any]:
    """A compiled graph, called with its inputs one by one, where no written input overlaps another.

    Args:
        otherwise: called with the same inputs where one does.
        metadata: what AOTAutograd found out about the graph.
    """
    written = memory.written(metadata)
    group = {i: number for number, one in enumerate(memory.together) for i in one}

    def compared(first: int, second: int) -> bool:
        own = group.get(first)
        return (first in written or second in written) and (own is None or own != group.get(second))

    pairs = list(islice((pair for pair in combinations(memory.tensors, 2) if compared(*pair)), _FEW + 1))
    if not pairs:
        return compiled
    seen: set[tuple[int, ...]] = set()
    overlap = partial(_overlap, memory, compared, seen)
    if memory.spans is not None and len(pairs) <= _FEW:
        scope = {"address": _address, "compiled": compiled, "otherwise": otherwise, "overlap": overlap}
        exec(_text(memory, pairs), scope)
        return wraps(compiled)(scope["call"])
    tensors = itemgetter(*memory.tensors)
    # the first twice: of one alone it would make no tuple
    numbers = itemgetter(memory.numbers[0], *memory.numbers) if memory.numbers else None

    @wraps(compiled)
    def call(*args: Any) -> Any:
        try:
            key = tuple(map(_address, tensors(args)))
        except RuntimeError:  # fake tensors, and those of transforms, have no address
            return compiled(*args)
        if numbers is not None:
            key += numbers(args)
        if key not in seen and overlap(args, key):
            return otherwise(*args)
        return compiled(*args)

    return call


def overlapping_raises(*_: Any) -> Any:
    """Called instead of a graph that was read from a cache, of which there is no captured form.

    Raises:
        InputLayoutError: always.
    """
    raise InputLayoutError(
        "a graph that writes to an input was traced with inputs apart from each other, and that one overlaps"
        " another",
        "pass a copy, or compile without storing what Dynamo traces",
    )


def part_of_memory(tensor: torch.Tensor) -> tuple[int, int]:
    """The address of the first element, and the one behind the last."""
    return (start := tensor.data_ptr()), start + _span(tensor)


def really_overlap(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether AOTAutograd takes any two tensors of one memory and one type for overlapping."""
    from torch._functorch._aot_autograd.input_output_analysis import compute_overlapping_tensors

    return bool(compute_overlapping_tensors(list(tensors), symbolic=False))


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first element to behind the last."""
    return int(compute_required_storage_length(tensor.shape, tensor.stride(), 0)) * tensor.element_size()


def _text(memory: InputMemory, pairs: Sequence[tuple[int, int]]) -> str:
    """A function that compares a few pairs, and makes no list of its inputs."""
    given = ", ".join(f"x{i}" for i in range(memory.count))
    spans = dict(zip(memory.tensors, memory.spans or (), strict=True))
    taken = "; ".join(f"p{i} = address(x{i})" for i in sorted({i for pair in pairs for i in pair}))
    meet = " or ".join(f"{-spans[j]} < p{j} - p{i} < {spans[i]}" for i, j in pairs)
    return f"""
def call({given}):
    try:
        {taken}
    except RuntimeError:
        return compiled({given})
    if ({meet}) and overlap(({given},)):
        return otherwise({given})
    return compiled({given})
"""


def _overlap(
    memory: InputMemory,
    compared: Callable[[int, int], bool],
    seen: set[tuple[int, ...]],
    args: Sequence[Any],
    key: tuple[int, ...] | None = None,
) -> bool:
    """Whether two inputs overlap that are to be compared; if none do, `key` is remembered."""
    if key is None or memory.spans is None:
        parts = sorted((*part_of_memory(args[i]), i) for i in memory.tensors)
    else:
        addresses = key[: len(memory.tensors)]  # behind them come the numbers
        spans = zip(addresses, memory.spans, memory.tensors, strict=True)
        parts = sorted((p, p + span, i) for p, span, i in spans)
    if any(end > start for (_, end, _), (start, _, _) in pairwise(parts)):
        for number, (_, end, first) in enumerate(parts):
            for start, _, second in parts[number + 1 :]:
                if start >= end:
                    break
                if compared(first, second) and _tensors_overlap(args[first], args[second]):
                    return True
    if key is not None and memory.numbers is not None:
        if len(seen) >= _MOST:
            seen.clear()
        seen.add(key)
    return False


def _tensors_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors overlap, of which parts of memory do."""
    if not (a.numel() and b.numel()):
        return False
    same = a.dtype is b.dtype and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    return not same or really_overlap((a, b))
