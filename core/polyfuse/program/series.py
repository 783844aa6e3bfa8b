"""Series of launches: consecutive launches of a program, with the memory that they need, as a function of its
own and as a table that a launcher carries out in one call (`polyfuse.runtime.devices.series`). Matmuls by a
library that the launcher calls itself are launches, too.

What nothing but kernels of one series sees is no tensor there: it is memory, taken from the device's
allocator and given back in the order in which the program allocates and forgets tensors, so that the peak is
the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import reduce

import torch

from polyfuse.ir.nodes import Buffer
from polyfuse.program.library_matmuls import LibraryMatmuls
from polyfuse.program.partitions import Span, runs_of_work, uses
from polyfuse.program.steps import (
    Allocate,
    Free,
    LaunchKernel,
    MakeView,
    Program,
    ProgramInput,
    Reuse,
    Series,
    SeriesRow,
    SeriesSize,
    Step,
)
from polyfuse.symbolic import IndexLike, storage_size
from polyfuse.symbolic.text import python_text

LEAST = 8
"""Launches from which on one call was seen to be cheaper than theirs: 37 were, series of four were not."""

MATMUL = 4
"""Launches that a library's matmul stands for: called through torch, it takes the host as long."""


def find_series(
    program: Program, joining: Mapping[str, Set[str]], buffers: Mapping[str, Buffer]
) -> tuple[Series, ...]:
    """The series of a program's launches.

    Args:
        joining: the names of the backends whose launchers carry out series, and the types of matmuls for
            which these call a library.
        buffers: of the program's graph.
    """
    if not program.device or program.profile or program.partitions or program.recording is not None:
        return ()
    return _Finder(program, joining, buffers).series()


class _Finder:
    """The state of looking for the series of one program."""

    def __init__(
        self, program: Program, joining: Mapping[str, Set[str]], buffers: Mapping[str, Buffer]
    ) -> None:
        self.program = program
        self.steps = program.steps
        self.kernels = {entry.name for entry in program.kernels if entry.backend in joining}
        own = [joining[entry.backend] for entry in program.kernels if entry.backend in joining]
        dtypes = reduce(lambda a, b: a & b, own) if own else frozenset()
        self.matmuls = LibraryMatmuls(program.steps, buffers, dtypes)

    def series(self) -> tuple[Series, ...]:
        """All of them."""
        found: list[Series] = []
        lost: set[str] = set()
        launches = {i for i, step in enumerate(self.steps) if isinstance(step, LaunchKernel)}
        matmuls = {i for i, step in enumerate(self.steps) if self.matmuls.of(step) is not None}
        fits = [i in matmuls or self._fits(step) for i, step in enumerate(self.steps)]
        for start, end in runs_of_work(self.steps, fits, launches | matmuls, 2, (Free,)):
            kernels = len(launches.intersection(range(start, end)))
            calls = len(matmuls.intersection(range(start, end)))
            # whose launcher it is, a kernel says
            if not kernels or kernels + MATMUL * calls < LEAST:
                continue
            span = Span(self.steps, (start, end), frozenset(), lost)
            lost.update(span.lost)
            table = _Table(self.steps[start:end], span, self.program.inputs, self.matmuls)
            found.append(table.series(f"series_{len(found)}"))
        return tuple(found)

    def _fits(self, step: Step) -> bool:
        if isinstance(step, LaunchKernel):
            return step.kernel in self.kernels and not step.device
        if isinstance(step, Allocate):
            return step.device == self.program.device and not step.cached and not step.status
        if isinstance(step, MakeView):
            return not step.result and step.view.dtype is None and isinstance(step.view.offset, int)
        return isinstance(step, (Free, Reuse))


class _Table:
    """The state of one series' table."""

    def __init__(
        self, steps: Sequence[Step], span: Span, inputs: Sequence[ProgramInput], matmuls: LibraryMatmuls
    ) -> None:
        self.steps = steps
        self.matmuls = matmuls
        self.views = _positions(steps, span, matmuls)
        self.span = span
        self.plain = _plain(steps, span, self.views)
        self.slots = {name: slot for slot, name in enumerate(dict.fromkeys((*span.inputs, *span.dead)))}
        self.inputs = tuple(self.slots)
        # memory of parameters is nobody's to give back
        self.static = {item.name for item in inputs if item.static}
        self.count = len(self.inputs)
        self.rows: list[SeriesRow] = []

    def series(self, name: str) -> Series:
        """The whole."""
        for step in self.steps:
            self._row(step)
        span = self.span
        results = tuple(self.slots[result] for result in span.results)
        return Series(
            name,
            span.start,
            span.end,
            self.inputs,
            span.symbols,
            span.results,
            span.dead,
            span.lost,
            tuple(self.rows),
            self.count,
            results,
        )

    def _row(self, step: Step) -> None:
        if isinstance(step, LaunchKernel):
            operands = tuple(self.slots[o] if isinstance(o, str) else python_text(o) for o in step.operands)
            self.rows.append(("launch", step.kernel, operands))
        elif isinstance(step, Allocate):
            layout = (_numbers(step.size), _numbers(step.stride))
            slot = self._new_slot(step.name)
            if step.name in self.plain:
                itemsize = getattr(torch, step.dtype).itemsize
                size = storage_size(step.size, step.stride) * itemsize
                self.rows.append(("memory", slot, _number(size)))
            else:
                self.rows.append(("tensor", slot, *layout, step.dtype))
        elif isinstance(step, Reuse):
            if step.same_layout or step.new in self.plain:
                self.slots[step.new] = self.slots[step.old]
            else:
                base, slot = self.slots[step.old], self._new_slot(step.new)
                self.rows.append(("view", slot, base, _numbers(step.size), _numbers(step.stride), 0))
                self.rows.append(("free", base))
        elif isinstance(step, Free):
            names = (name for name in step.names if name in self.slots and name not in self.static)
            self.rows += [("free", self.slots[name]) for name in names]
        elif isinstance(step, MakeView) and step.name not in self.views:
            base, slot, view = self.slots[step.view.buffer], self._new_slot(step.name), step.view
            self.rows.append(("view", slot, base, _numbers(view.size), _numbers(view.stride), view.offset))
        elif (matmul := self.matmuls.of(step, self.views)) is not None:
            self.rows.append(matmul.row(self.slots.__getitem__))

    def _new_slot(self, name: str) -> int:
        self.slots[name] = self.count
        self.count += 1
        return self.count - 1


def _positions(steps: Sequence[Step], span: Span, matmuls: LibraryMatmuls) -> frozenset[str]:
    """Views that matmuls of a series alone read: no tensors, but positions in what they are views of."""
    found = {step.name for step in steps if isinstance(step, MakeView)}.difference(span.results)
    for step in steps:
        if not isinstance(step, (Free, MakeView)) and matmuls.of(step) is None:
            found.difference_update(uses(step))
    return frozenset(found)


def _plain(steps: Sequence[Step], span: Span, positions: Set[str]) -> frozenset[str]:
    """What is made in a series and seen by its kernels alone."""
    results = set(span.results)
    chains: dict[str, list[str]] = {}
    for step in steps:
        if isinstance(step, Allocate):
            chains[step.name] = [step.name]
        elif isinstance(step, Reuse) and step.old in chains:
            chains[step.new] = chains[step.old]
            chains[step.new].append(step.new)
        elif isinstance(step, MakeView) and step.name not in positions:
            results.add(step.view.buffer)
    return frozenset(name for name, chain in chains.items() if results.isdisjoint(chain))


def _number(index: IndexLike) -> SeriesSize:
    return index if isinstance(index, int) else python_text(index)


def _numbers(indices: Sequence[IndexLike]) -> tuple[SeriesSize, ...]:
    return tuple(map(_number, indices))
