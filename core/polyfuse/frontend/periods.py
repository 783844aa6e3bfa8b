"""Where a traced graph repeats itself, so that the stages after tracing see only a few of its layers.

Nodes are compared by operator, constants, what their results look like, and by which nodes they read: those
of their own period, of the one before, nodes that all periods read, or inputs of the graph that look the
same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from polyfuse.frontend.graph import AtenGraph
from polyfuse.frontend.runs import longest_repetition, longest_run
from polyfuse.frontend.shared_arguments import SHARED
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fake, fx

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
_EXACT = frozenset({int, bool, str})
_INTS = frozenset({int})
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
    reads = _Reads(aten, nodes)
    tokens: list[Hashable] = list(map(_Tokens(aten).of, nodes, reads.sources))
    found = None
    for found in _runs(reads, tokens):
        yield found
    if found is None:
        # layers that differ in their sizes alone may look like a run in other periods than theirs
        yield from _runs(reads, list(zip(tokens, map(reads.look, range(len(nodes))), strict=True)))


def _runs(reads: _Reads, tokens: Sequence[Hashable]) -> Iterator[Periods]:
    """The longest run of equal tokens in its periods, and in pairs of these."""
    start, length, period = longest_repetition(tokens, _LEAST_NODES, _LEAST)
    for multiple in (1, 2):
        if period and length >= _LEAST * period * multiple:
            found = _periods(reads, start, length, period * multiple)
            if found is not None:
                yield found


def _periods(reads: _Reads, start: int, length: int, period: int) -> Periods | None:
    """The periods of such a length in a run of equal tokens."""
    first, alike = reads.alike(start, length, period)
    start, count = start + first, (alike + period) // period
    while count >= _LEAST:
        end = start + count * period
        # a period at an end that reads or is read from further away is left alone
        if reads.escape(start, end, period, 1):
            start, count = start + period, count - 1
        elif reads.escape(start, end, period, count - 1):
            return None
        else:
            rows = reads.inputs(start, end, period)
            if rows is None:
                return None
            readers = {node: reads.first_reader(node, start, period) for row in rows for node in row}
            late = end - _AFTER * period
            if any(n < BEFORE and reads.last_reader(node) >= late for node, n in readers.items()):
                return None
            return Periods(reads.nodes[start:end], period, rows, readers)
    return None


class _Tokens:
    """What the nodes of a graph are, whatever they read and whatever comes of it."""

    def __init__(self, aten: AtenGraph) -> None:
        self._returned = frozenset(aten.module.graph.output_node().all_input_nodes)
        # by identity, as operators compute their hashes anew each time; they stay alive here
        self._targets: dict[int, bool] = {}
        self._originals: dict[int, tuple[Any, str]] = {}

    def of(self, node: Node, sources: Sequence[Node]) -> Hashable:
        """What a node is."""
        meta, target = node.meta, node.target
        try:
            plain = self._targets.get(id(target))
            if plain is None:
                plain = self._targets[id(target)] = _is_plain(target)
            if not plain or meta.get(SHARED):
                return node
            numbers = {source: number for number, source in enumerate(sources)}
            args = _value(node.args, numbers)
            kwargs = node.kwargs
            named = _value(tuple(kwargs.items()), numbers) if kwargs else ()
            return id(target), args, named, self._original(node), node in self._returned
        except _Incomparable:
            return node

    def _original(self, node: Node) -> str:
        original = fx.original_operator(node)
        known = self._originals.get(id(original))
        if known is None:
            # graphs that were copied have operators of their own there
            name = original.name() if isinstance(original, ops.OpOverload) else str(original)
            known = self._originals[id(original)] = original, name
        return known[1]


def _is_plain(target: Any) -> bool:
    facts = ops.facts(target)
    return not (facts.mutates or facts.is_higher_order or facts.data_dependent)


def _value(values: Sequence[Any], numbers: Mapping[Node, int]) -> Hashable:
    """What arguments are: the type of each and its value, or the number of the node."""
    found: list[Hashable] = []
    for value in values:
        kind: Any = type(value)
        found.append(kind)
        if kind is Node:
            found.append(numbers[value])
        elif kind in _EXACT:
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found.append(_value(value, numbers))
        elif isinstance(value, dict):
            found.append(_value(tuple(value.items()), numbers))
        elif isinstance(value, torch.SymInt):
            found.append(str(value))
        elif isinstance(value, _PLAIN):
            found.append(repr(value))
        else:
            raise _Incomparable
    return tuple(found)


def _look(value: Any) -> Hashable:
    """What is known of a result."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or not fake.is_fake(value):
            raise _Incomparable
        flags = value.is_conj(), value.is_neg(), value.is_quantized
        offset: Any = value.storage_offset()
        size, stride = value.shape, value.stride()
        if type(offset) is not int or not _INTS.issuperset(map(type, (*size, *stride))):
            return value.dtype, value.device, (*map(str, size),), (*map(str, stride),), str(offset), flags
        return value.dtype, value.device, (*size,), stride, offset, flags
    if isinstance(value, (tuple, list)):
        return type(value), *(_look(item) for item in value)
    if value is None or isinstance(value, _SIZES):
        return type(value), str(value)
    raise _Incomparable


class _Reads:
    """What the nodes of a graph read, compared with what the nodes a period later read.

    Nodes have their positions as numbers, and inputs and constants the numbers below zero.

    Attributes:
        nodes: of the graph, in order.
        sources: what each of them reads.
    """

    def __init__(self, aten: AtenGraph, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.sources = [node.all_input_nodes for node in nodes]
        self._described = {item.name: item for item in aten.inputs}
        self._module = aten.module
        numbers = {node: position for position, node in enumerate(nodes)}
        read: list[int] = []
        leaves: list[Node] = []
        for sources in self.sources:
            for source in sources:
                number = numbers.get(source)
                if number is None:
                    leaves.append(source)
                    number = numbers[source] = -len(leaves)
                read.append(number)
        counts = [len(sources) for sources in self.sources]
        self._leaves, self._numbers = leaves, numbers
        self._looks: dict[int, Hashable] = {}
        self._results: dict[int, Hashable] = {}
        # of each node where those that it reads begin among all that is read, and the reader of each
        self._begins = np.concatenate(([0], np.cumsum(counts)))
        self._read = np.array(read, dtype=np.int64)
        self._readers: Any = np.repeat(np.arange(len(nodes)), counts)
        # positions of the first and the last reader; numbers below zero count from behind
        self._first = np.full(len(nodes) + len(leaves), len(nodes))
        self._last = np.full(len(nodes) + len(leaves), -1)
        np.minimum.at(self._first, self._read, self._readers)
        np.maximum.at(self._last, self._read, self._readers)

    def alike(self, start: int, length: int, period: int) -> tuple[int, int]:
        """Where in a run the longest part begins whose nodes are like those a period later, and its length.

        Results of the same operator look the same where what it reads does. A node reads of its own period
        and of the one before it, so that it is enough to look at what comes of the first two periods.
        """
        same = self._read_alike(start, length, period)
        while True:
            first, count = longest_run(same)
            looked_at = range(start + first, start + first + min(count, 2 * period))
            other = [at - start for at in looked_at if self.look(at) != self.look(at + period)]
            if not other:
                return first, count
            same[other] = False

    def look(self, position: int) -> Hashable:
        """What comes of a node; what cannot be compared is like nothing else."""
        found = self._results.get(position)
        if found is None:
            node = self.nodes[position]
            try:
                found = _look(node.meta.get("val"))
            except _Incomparable:
                found = node
            self._results[position] = found
        return found

    def _read_alike(self, start: int, length: int, period: int) -> Any:
        """Whether each node of a run, its last period left out, reads what is like what the node a period
        later reads. The nodes of each such pair read equally many.
        """
        one, two, readers = self._pairs(start, start + length, period)
        near = (one >= 0) & (two - one == period) & (readers - one < 2 * period)
        fine = (one == two) | near
        for at in np.flatnonzero(~fine & (one < 0) & (two < 0)).tolist():
            fine[at] = self._leaf(int(one[at])) == self._leaf(int(two[at]))
        same: Any = np.ones(length - period, dtype=bool)
        same[readers[~fine] - start] = False
        return same

    def escape(self, start: int, end: int, period: int, count: int) -> bool:
        """Whether a node of the first periods of a run, so many, is read by others than its own period, the
        next one, and the results of the graph.
        """
        positions = np.arange(start, start + count * period)
        last = self._last[positions]
        further = (last - start) // period > (positions - start) // period + 1
        return bool(((last >= end) | further).any())

    def inputs(self, start: int, end: int, period: int) -> Sequence[Sequence[Node]] | None:
        """The inputs that not all periods of a run read: lists in which each is read as the one before it
        was, a period earlier. None where they make no such lists.
        """
        one, two, _ = self._pairs(start, end, period)
        given = one < 0
        after: dict[Node, Node] = {}
        before: dict[Node, Node] = {}
        for left, right in dict.fromkeys(zip(one[given].tolist(), two[given].tolist(), strict=True)):
            first, second = self._leaves[-left - 1], self._leaves[-right - 1]
            if first.op != "placeholder":
                continue
            if after.setdefault(first, second) is not second or before.setdefault(second, first) is not first:
                return None
        chains: list[Sequence[Node]] = []
        for first in after:
            if first not in before:
                chain = [first]
                while chain[-1] in after:
                    chain.append(after[chain[-1]])
                chains.append(chain)
        return chains

    def first_reader(self, leaf: Node, start: int, period: int) -> int:
        """The first period of a run that reads an input; -1 for what is in front of it."""
        return max((int(self._first[self._numbers[leaf]]) - start) // period, -1)

    def last_reader(self, leaf: Node) -> int:
        """The position of the last node that reads an input."""
        return int(self._last[self._numbers[leaf]])

    def _pairs(self, start: int, end: int, period: int) -> tuple[Any, Any, Any]:
        """What the nodes of a run read, what those a period later read, and the positions of the former."""
        begins = self._begins
        earlier = slice(begins[start], begins[end - period])
        later = slice(begins[start + period], begins[end])
        return self._read[earlier], self._read[later], self._readers[earlier]

    def _leaf(self, number: int) -> Hashable:
        """What an input or a constant looks like; what cannot be compared is like nothing else."""
        found = self._looks.get(number)
        if found is None:
            found = self._looks[number] = self._stated(self._leaves[-number - 1])
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
