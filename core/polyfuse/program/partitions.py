"""Graph partitions: what of a program is recorded where the whole cannot be.

They are runs of steps between those that cannot be recorded.

Each run becomes a function of its own in the program's text, with what it reads as arguments and what later
steps read as results, so that it is recorded like a program. What one of them computes, the next one reads
without a copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import View
from polyfuse.program.steps import (
    Allocate,
    Conform,
    ExternStep,
    Free,
    LaunchKernel,
    MakeView,
    Partition,
    Ref,
    Return,
    Reuse,
    Step,
)
from polyfuse.program.symbols import expressions, symbols_in
from polyfuse.runtime.graphs.replay import GraphFacts
from polyfuse.torch_compat.tracing import shapes

LEAST: Final = 4
"""Launches and calls in a run for which recording them pays."""


@dataclass(frozen=True)
class Work:
    """What a launch or call does.

    Attributes:
        fault: why it cannot be recorded; empty if it can.
        writes: the variables that it writes to.
    """

    fault: str
    writes: tuple[str, ...]


@dataclass(frozen=True)
class RecordingContext:
    """What must be known of the graph.

    Attributes:
        graph: what the program computes.
        device: that all of a run must be on.
        constants: variables that every function of the program knows.
        limit: how many different sizes of a run are recorded.
    """

    graph: Graph
    device: str
    constants: frozenset[str]
    limit: int


def find_partitions(
    steps: Sequence[Step], work: Mapping[int, Work], around: RecordingContext
) -> tuple[Partition, ...]:
    """The runs of `steps` that can be recorded, given what the launches and calls among them do."""
    found: list[Partition] = []
    lost: set[str] = set()
    fits = [_fits(step, work.get(position), around.device) for position, step in enumerate(steps)]
    for start, end in runs_of_work(steps, fits, work, LEAST, (Free, Conform)):
        run = _Run(steps, (start, end), work, around, lost)
        if run.recordable():
            found.append(run.partition(f"partition_{len(found)}"))
            lost.update(run.lost)
    return tuple(found)


def runs_of_work(
    steps: Sequence[Step],
    fits: Sequence[bool],
    work: Collection[int],
    least: int,
    trailing: tuple[type[Step], ...],
) -> Iterator[tuple[int, int]]:
    """Where runs of steps begin and end. What only prepares for other steps is left to these.

    Args:
        fits: whether each step may be part of a run.
        work: positions of steps for whose sake there are runs.
        least: how many of these a run has.
        trailing: kinds of steps that belong to a run whose work they follow.
    """
    position = 0
    while position < len(steps):
        start = position
        while position < len(steps) and fits[position]:
            position += 1
        busy = [i for i in range(start, position) if i in work]
        if len(busy) >= least:
            while isinstance(steps[start], Free):
                start += 1
            end = busy[-1] + 1
            while end < position and isinstance(steps[end], trailing):
                end += 1
            yield start, end
        position += 1


def _fits(step: Step, work: Work | None, device: str) -> bool:
    if work is not None:
        return not work.fault
    if isinstance(step, Allocate):
        return step.device == device
    return isinstance(step, (Free, Reuse, MakeView, Conform))


class Span:
    """Consecutive steps: what goes into them and what comes out.

    Args:
        steps: of the whole program.
        bounds: where these begin and end.
        known: variables that every function of the program has.
        gone: variables that functions before these made, and that nobody has any more.

    Attributes:
        inputs: variables from before that are read.
        made: variables that are bound.
        killed: variables that are forgotten.
        results: what later steps read of `made`.
        lost: what later steps only forget of `made`.
        dead: variables from before that no later step has.
        symbols: in sizes.
    """

    def __init__(
        self, steps: Sequence[Step], bounds: tuple[int, int], known: Set[str], gone: Set[str]
    ) -> None:
        start, end = self.start, self.end = bounds
        self.known = known
        self.gone = gone
        self.inputs: dict[str, None] = {}
        self.made: dict[str, None] = {}
        self.killed: dict[str, None] = {}
        for step in steps[start:end]:
            self._take(step)
        later = {name for step in steps[end:] if not isinstance(step, Free) for name in uses(step)}
        alive = [name for name in self.made if name not in self.killed]
        self.results = tuple(name for name in alive if name in later)
        self.lost = tuple(name for name in alive if name not in later)
        self.dead = tuple(n for n in self.killed if n in self.inputs or n not in self.made)
        self.symbols = tuple(dict.fromkeys(symbols_in(expressions(steps[start:end]))))

    def _take(self, step: Step) -> None:
        if isinstance(step, Free):
            self.killed.update((name, None) for name in step.names if name not in self.gone)
            return
        for name in uses(step):
            if name not in self.made and name not in self.known:
                self.inputs[name] = None
        if isinstance(step, Reuse):
            self.killed[step.old] = None
        self.made.update(dict.fromkeys(_makes(step)))


class _Run(Span):
    """Steps that may be recorded."""

    def __init__(
        self,
        steps: Sequence[Step],
        bounds: tuple[int, int],
        work: Mapping[int, Work],
        around: RecordingContext,
        gone: Set[str],
    ) -> None:
        super().__init__(steps, bounds, around.constants, gone)
        self.around = around
        self.returned = steps[-1]
        inside = range(*bounds)
        self.written = {name for i in inside if i in work for name in work[i].writes}
        self.written.update(step.old for step in steps[slice(*bounds)] if isinstance(step, Reuse))

    def recordable(self) -> bool:
        """Whether only tensors, numbers and generators go in and out, and no size comes from data."""
        buffers = self.around.graph.buffers
        crossing = (*self.inputs, *self.results)
        if any(name in buffers and buffers[name].kind == "object" for name in crossing):
            return False
        return not any(shapes.is_unbacked_name(symbol) for symbol in self.symbols)

    def partition(self, name: str) -> Partition:
        """The run as a function of the program."""
        inputs = tuple(self.inputs)
        declared = {item.name: item for item in self.around.graph.inputs}
        objects = {n for n in inputs if n in declared and declared[n].kind == "object"}
        static = {n for n in inputs if n in declared and declared[n].static}
        where = {n: i for i, n in enumerate(inputs)}
        facts = GraphFacts(
            device=self.around.device,
            fixed=tuple(where[n] for n in inputs if n in static),
            varying=tuple(where[n] for n in inputs if n not in static and n not in objects),
            mutated=tuple(where[n] for n in inputs if n in self.written),
            saved=self._saved(),
            objects=tuple(where[n] for n in inputs if n in objects),
            limit=self.around.limit,
            names=(*inputs, *self.symbols),
        )
        return Partition(
            name, self.start, self.end, inputs, self.symbols, self.results, self.dead, self.lost, facts
        )

    def _saved(self) -> tuple[int, ...]:
        """Results that nobody sees but a backward."""
        seen: dict[str, bool] = {}
        assert isinstance(self.returned, Return)
        for value, output in zip(self.returned.values, self.around.graph.outputs, strict=True):
            for name in names_in(value):
                seen[name] = seen.get(name, True) and output.saved
        return tuple(i for i, name in enumerate(self.results) if seen.get(name, False))


def uses(step: Step) -> Iterator[str]:
    """Variables that a step reads, tensors and host values."""
    if isinstance(step, LaunchKernel):
        yield from (o for o in step.operands if isinstance(o, str))
    elif isinstance(step, ExternStep):
        yield from names_in((step.args, tuple(value for _, value in step.kwargs)))
        if step.out == "out":
            yield from step.outputs
    elif isinstance(step, Reuse):
        yield step.old
    elif isinstance(step, MakeView):
        yield step.view.buffer
    elif isinstance(step, Return):
        yield from names_in(step.values)
    elif hasattr(step, "read"):
        yield step.read.name
    elif hasattr(step, "name") and not isinstance(step, Allocate):
        yield step.name


def _makes(step: Step) -> Iterator[str]:
    """Variables that a step binds."""
    if isinstance(step, (Allocate, MakeView, Conform)):
        yield step.name
    elif isinstance(step, Reuse):
        yield step.new
    elif isinstance(step, ExternStep) and step.out in ("single", "tuple"):
        yield from (name for name in step.outputs if name)


def names_in(value: Any) -> Iterator[str]:
    """Variables in an operand or result."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, View):
        yield value.buffer
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from names_in(item)
