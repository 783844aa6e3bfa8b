"""Where a traced graph repeats itself, so that the stages after tracing see only a few of its layers.

Nodes are compared by operator, constants, what their results look like, and by which nodes they read: those
of their own period, of the one before, nodes that all periods read, or inputs of the graph that look the
same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from polyfuse.frontend.graph import AtenGraph
from polyfuse.frontend.runs import longest_repetition, longest_run
from polyfuse.frontend.shared_arguments import SHARED
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fake, fx

__all__ = ["BEFORE", "NotRepeated", "Periods", "periods_of"]

BEFORE = 2
"""Periods that are seen before those that are skipped; the last of them stands for these."""

_AFTER = 2
"""Periods that are seen behind them."""

_LEAST_NODES = 8
"""Of a period."""

_LEAST_SKIPPED = 2
"""Periods that have to be skipped to be worth the search."""

_LEAST = BEFORE + _AFTER + _LEAST_SKIPPED

_SIZES = (int, bool, torch.SymInt)
_PLAIN = (
    int,
    float,
    complex,
    bool,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


_Sources: TypeAlias = Mapping[Node, Sequence[Node]]
"""What each of some nodes reads, in the order of its arguments."""


class NotRepeated(Exception):
    """Periods of a graph did not lower to equal nodes after all, so that the whole graph is compiled."""


class _Incomparable(Exception):
    """A value that cannot be compared."""


@dataclass(frozen=True, eq=False)
class Periods:
    """A run of a graph's nodes in equal periods.

    Attributes:
        nodes: the run.
        length: nodes of a period.
        inputs: the inputs that not all periods read, in lists: each is read as the one before it in its list
            was, a period earlier.
        readers: the first period that reads each of these; -1 where something in front of the run does.
    """

    nodes: Sequence[Node]
    length: int
    inputs: Sequence[Sequence[Node]]
    readers: Mapping[Node, int]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.nodes) // self.length

    @property
    def skipped(self) -> int:
        """How many are not looked at."""
        return self.count - BEFORE - _AFTER

    def period(self, number: int) -> Sequence[Node]:
        """The nodes of one of them."""
        return self.nodes[number * self.length : (number + 1) * self.length]

    def left_out(self) -> Mapping[Node, tuple[Node, int]]:
        """The nodes of those that are skipped: which node of the period before them each is like, and how
        many periods behind that it is.
        """
        known = self.period(BEFORE - 1)
        return {
            node: (like, copy)
            for copy in range(1, self.skipped + 1)
            for node, like in zip(self.period(BEFORE - 1 + copy), known, strict=True)
        }


def periods_of(aten: AtenGraph) -> Iterator[Periods]:
    """The longest run of a graph that repeats itself often enough for some of it to be skipped.

    First in the shortest periods, then with two of them as one, as what becomes of these may alternate.
    Nothing where there is none.
    """
    nodes = [node for node in aten.module.graph.nodes if node.op == "call_function"]
    if len(nodes) < _LEAST_NODES * _LEAST:
        return
    # for most graphs the operators alone decide, a hundredth of the work
    if not longest_repetition([id(node.target) for node in nodes], _LEAST_NODES, _LEAST)[2]:
        return
    reads = {node: node.all_input_nodes for node in nodes}
    start, length, period = longest_repetition(
        list(map(_Tokens(aten, reads).of, nodes)), _LEAST_NODES, _LEAST
    )
    for multiple in (1, 2):
        if period and length >= _LEAST * period * multiple:
            found = _periods(aten, reads, start, length, period * multiple)
            if found is not None:
                yield found


def _periods(aten: AtenGraph, sources: _Sources, start: int, length: int, period: int) -> Periods | None:
    """The periods of such a length in a run of equal tokens."""
    nodes = list(sources)
    positions = {node: position for position, node in enumerate(nodes)}
    reads = _Reads(aten, sources, positions, period)
    same = [reads.alike(nodes[at], nodes[at + period]) for at in range(start, start + length - period)]
    first, alike = longest_run(_flags(same))
    start, count = start + first, (alike + period) // period
    while count >= _LEAST:
        found = nodes[start : start + count * period]
        end = start + count * period
        # a period at an end that reads or is read from further away is left alone
        if not all(_is_near(node, positions, start, end, period) for node in found[:period]):
            start, count = start + period, count - 1
        elif any(_escapes(node, positions, start, end, period) for node in found[: (count - 1) * period]):
            return None
        else:
            inputs = reads.inputs(found, period)
            if inputs is None:
                return None
            readers = {node: _first_reader(node, positions, start, period) for row in inputs for node in row}
            late = start + (count - _AFTER) * period
            if any(n < BEFORE and _last_reader(node, positions) >= late for node, n in readers.items()):
                return None
            return Periods(found, period, inputs, readers)
    return None


def _flags(same: Sequence[bool]) -> Any:
    import numpy as np

    return np.array(same, dtype=bool)


def _is_near(node: Node, positions: Mapping[Node, int], start: int, end: int, period: int) -> bool:
    """Whether no node of the run further away than the next period reads a node of its first one."""
    mine = (positions[node] - start) // period
    for user in node.users:
        at = positions.get(user)
        if at is not None and (at >= end or (at - start) // period > mine + 1):
            return False
    return True


def _escapes(node: Node, positions: Mapping[Node, int], start: int, end: int, period: int) -> bool:
    """Whether a node is read by others than its own period, the next one, and the results of the graph."""
    mine = (positions[node] - start) // period
    for user in node.users:
        at = positions.get(user)
        if at is None:
            if user.op != "output":
                return True
        elif at >= end or (at - start) // period > mine + 1:
            return True
    return False


def _first_reader(node: Node, positions: Mapping[Node, int], start: int, period: int) -> int:
    return min(
        (max((positions[user] - start) // period, -1) for user in node.users if user in positions), default=-1
    )


def _last_reader(node: Node, positions: Mapping[Node, int]) -> int:
    return max(positions.get(user, 0) for user in node.users)


class _Tokens:
    """What the nodes of a graph are, whatever they read."""

    def __init__(self, aten: AtenGraph, reads: _Sources) -> None:
        self._reads = reads
        self._returned = frozenset(aten.module.graph.output_node().all_input_nodes)
        # by identity, as operators compute their hashes anew each time
        self._targets: dict[int, bool] = {}

    def of(self, node: Node) -> Hashable:
        """What a node is."""
        try:
            if not self._is_plain(node.target) or node.meta.get(SHARED):
                return node
            numbers = {source: number for number, source in enumerate(self._reads[node])}
            args = (_value(node.args, numbers), _value(node.kwargs, numbers) if node.kwargs else ())
            original = fx.original_operator(node)
            # graphs that were copied have operators of their own there
            source = original.name() if isinstance(original, ops.OpOverload) else str(original)
            return id(node.target), args, _look(node.meta.get("val")), source, node in self._returned
        except _Incomparable:
            return node

    def _is_plain(self, target: Any) -> bool:
        found = self._targets.get(id(target))
        if found is None:
            facts = ops.facts(target)
            found = not (facts.mutates or facts.is_higher_order or facts.data_dependent)
            self._targets[id(target)] = found
        return found


def _value(value: Any, numbers: Mapping[Node, int]) -> Hashable:
    if isinstance(value, Node):
        return "node", numbers[value]
    if type(value) in (int, bool, str):
        return type(value), value
    if isinstance(value, (tuple, list)):
        return type(value), *[_value(item, numbers) for item in value]
    if isinstance(value, dict):
        return "dict", *((key, _value(item, numbers)) for key, item in value.items())
    if isinstance(value, torch.SymInt):
        return "size", str(value)
    if isinstance(value, _PLAIN):
        return type(value), repr(value)
    raise _Incomparable


def _look(value: Any) -> Hashable:
    """What is known of a result."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or not fake.is_fake(value):
            raise _Incomparable
        return (
            value.dtype,
            value.device,
            _sizes(value.shape),
            _sizes(value.stride()),
            str(value.storage_offset()),
            (value.is_conj(), value.is_neg(), value.is_quantized),
        )
    if isinstance(value, (tuple, list)):
        return type(value), *(_look(item) for item in value)
    if value is None or isinstance(value, _SIZES):
        return type(value), str(value)
    raise _Incomparable


def _sizes(sizes: Sequence[Any]) -> Hashable:
    for size in sizes:
        if type(size) is not int:
            return tuple(map(str, sizes))
    return tuple(sizes)


class _Reads:
    """What nodes read, compared with what the nodes a period later read."""

    def __init__(
        self, aten: AtenGraph, sources: _Sources, positions: Mapping[Node, int], period: int
    ) -> None:
        self._sources, self._positions, self._period = sources, positions, period
        self._described = {item.name: item for item in aten.inputs}
        self._module = aten.module
        self._looks: dict[Node, Hashable] = {}

    def alike(self, node: Node, later: Node) -> bool:
        """Whether a node that looks like another one reads what is like what that reads."""
        positions, period = self._positions, self._period
        for one, two in zip(self._sources[node], self._sources[later], strict=True):
            if one is two:
                continue
            if one in positions and two in positions:
                near = positions[node] - positions[one] < 2 * period
                if not near or positions[two] - positions[one] != period:
                    return False
            elif one in positions or two in positions or self._leaf(one) != self._leaf(two):
                return False
        return True

    def _leaf(self, node: Node) -> Hashable:
        """What an input or a constant looks like; what cannot be compared is like nothing else."""
        found = self._looks.get(node)
        if found is None:
            found = self._looks[node] = self._stated(node)
        return found

    def _stated(self, node: Node) -> Hashable:
        value = node.meta.get("val")
        try:
            if node.op == "placeholder":
                item = self._described.get(node.name)
                if item is None or item.mutated or not isinstance(value, torch.Tensor):
                    return node
                return "input", item.static, item.donated, _look(value)
            known = fx.get_constant(self._module, str(node.target)) if node.op == "get_attr" else None
            if isinstance(known, torch.Tensor) and known.dim() == 0 and known.device.type == "cpu":
                with fake.real_tensors():
                    return "number", known.dtype, repr(known.item())
        except _Incomparable:
            pass
        return node

    def inputs(self, run: Sequence[Node], period: int) -> Sequence[Sequence[Node]] | None:
        """The inputs that not all periods read: lists in which each is read as the one before it was, a
        period earlier. None where they make no such lists.
        """
        after: dict[Node, Node] = {}
        before: dict[Node, Node] = {}
        for node, later in zip(run[:-period], run[period:], strict=True):
            for one, two in zip(self._sources[node], self._sources[later], strict=True):
                if one.op == "placeholder":
                    if after.setdefault(one, two) is not two or before.setdefault(two, one) is not one:
                        return None
        chains: list[Sequence[Node]] = []
        for first in after:
            if first not in before:
                chain = [first]
                while chain[-1] in after:
                    chain.append(after[chain[-1]])
                chains.append(chain)
        return chains
