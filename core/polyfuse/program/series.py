"""Series of launches: consecutive launches of a program, with the memory that they need, as a function of its
own and as a table that a launcher carries out in one call (`polyfuse.runtime.devices.series`). Matmuls by a
library that the launcher calls itself are launches, too.

What nothing but kernels of one series sees is no tensor there: it is memory, taken from the device's
allocator and given back in the order in which the program allocates and forgets tensors, so that the peak is
the same. On the host, where sizes have to be known, a range of a cached block is memory, too; a large tensor
from before that dies ends a series, which would hold it until all kernels have run.
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
    ExternStep,
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
from polyfuse.program.symbols import expressions, symbols_in
from polyfuse.runtime.frozen import CHECKED, FROZEN
from polyfuse.symbolic import IndexLike, storage_size
from polyfuse.symbolic.text import python_text

LEAST = 8
"""Launches from which on one call was seen to be cheaper than theirs: 37 were, series of four were not."""

MATMUL = 4
"""Launches that a library's matmul stands for: called through torch, it takes the host as long."""

_SMALL = 4 << 20
"""Bytes of an input that may be held until the end of a series on the host, where it dies in between."""


def find_series(
    program: Program, joining: Mapping[str, Set[str]], buffers: Mapping[str, Buffer]
) -> tuple[Series, ...]:
    """The series of a program's launches.

    Args:
        joining: the names of the backends whose launchers carry out series, and the types of matmuls for
            which these call a library.
        buffers: of the program's graph.
    """
    if program.profile or program.partitions or program.recording is not None:
        return ()
    steps = program.steps
    own = {entry.name: joining[entry.backend] for entry in program.kernels if entry.backend in joining}
    dtypes = reduce(lambda a, b: a & b, own.values()) if own else frozenset()
    matmuls = LibraryMatmuls(steps, buffers, dtypes)
    if program.device:
        fits = [_fits(step, own.keys(), program.device) for step in steps]
    elif program.loop is None:
        fits = _host_fits(program, own.keys())
    else:
        return ()
    launches = {position for position, step in enumerate(steps) if isinstance(step, LaunchKernel)}
    called = {position for position, step in enumerate(steps) if matmuls.of(step) is not None}
    fits = [fit or position in called for position, fit in enumerate(fits)]
    found: list[Series] = []
    lost: set[str] = set()
    for start, end in runs_of_work(steps, fits, launches | called, 2, (Free,)):
        kernels, calls = (len(work.intersection(range(start, end))) for work in (launches, called))
        # whose launcher it is, a kernel says
        if kernels and kernels + MATMUL * calls >= LEAST:
            span = Span(steps, (start, end), frozenset(), lost)
            lost.update(span.lost)
            table = _Table(steps[start:end], span, program.inputs, matmuls, buffers)
            found.append(table.series(f"series_{len(found)}"))
    return tuple(found)


def _fits(step: Step, kernels: Set[str], device: str) -> bool:
    if isinstance(step, LaunchKernel):
        return step.kernel in kernels and not step.device
    if isinstance(step, Allocate):
        return step.device == device and not step.cached and not step.status
    if isinstance(step, MakeView):
        return not step.result and step.view.dtype is None and isinstance(step.view.offset, int)
    return isinstance(step, (Free, Reuse))


def _host_fits(program: Program, kernels: Set[str]) -> list[bool]:
    blocks = {step.name for step in program.steps if isinstance(step, Allocate) and step.cached}
    dying = {item.name for item in program.inputs if not item.static and not _is_small(item)}
    for step in program.steps:
        # what is computed once of a parameter is held elsewhere
        if isinstance(step, ExternStep) and not step.op.startswith((FROZEN, CHECKED)):
            dying.update(step.outputs)

    def fits(step: Step) -> bool:
        if isinstance(step, MakeView):
            return step.view.buffer in blocks and not step.result and not _varies(step)
        if isinstance(step, Free):
            return dying.isdisjoint(step.names)
        return _fits(step, kernels, "cpu") and not _varies(step)

    return [fits(step) for step in program.steps]


def _is_small(item: ProgramInput) -> bool:
    if item.kind != "tensor":
        return False
    size = storage_size(item.size, item.stride)
    return isinstance(size, int) and size * getattr(torch, item.dtype).itemsize <= _SMALL


def _varies(step: Step) -> bool:
    return any(True for _ in symbols_in(expressions([step])))


class _Table:
    """The state of one series' table."""

    def __init__(
        self,
        steps: Sequence[Step],
        span: Span,
        inputs: Sequence[ProgramInput],
        matmuls: LibraryMatmuls,
        buffers: Mapping[str, Buffer],
    ) -> None:
        self.steps = steps
        self.span = span
        self.matmuls = matmuls
        self.buffers = buffers
        self.views = _positions(steps, span, matmuls)
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
                self.rows.append(("view", slot, base, _numbers(step.size), _numbers(step.stride)))
                self.rows.append(("free", base))
        elif isinstance(step, MakeView) and step.name not in self.views:
            base, slot, view = self.slots[step.view.buffer], self._new_slot(step.name), step.view
            layout = (_numbers(view.size), _numbers(view.stride))
            dtype = str(view.dtype.torch).removeprefix("torch.") if view.dtype is not None else ""
            dtype = dtype or self.buffers[view.buffer].torch_dtype
            self.rows.append(("part", slot, base, _number(view.offset), *layout, dtype))
        elif isinstance(step, Free):
            names = (name for name in step.names if name in self.slots and name not in self.static)
            self.rows += [("free", self.slots[name]) for name in names]
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
