"""Bytes in use while a schedule's units run one after another.

Counted are the buffers that a program allocates, those that a backward gets from its forward and can release,
and copies that calls make of their operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from polyfuse.ir.communication import IN_SHARED_MEMORY
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import ADDS_IN_PLACE, Collective, ExternCall, View
from polyfuse.schedule.context import ScheduleContext
from polyfuse.schedule.fusion.units import Unit
from polyfuse.symbolic import IndexLike
from polyfuse.torch_compat.ops import comes_with_torch

_UNKNOWN = 8
"""Bytes of a number of a type that only eager operators read."""

_CALLERS = "tangents", "primals"
"""How names of a backward's inputs begin that the forward did not compute."""


@dataclass(frozen=True)
class Step:
    """What a unit does to storages.

    Attributes:
        touches: the counted storages that it reads or writes.
        scratch: bytes that it takes for itself while it runs.
        writes_over: whether a result may be written over an operand that dies.
    """

    touches: tuple[str, ...]
    scratch: int
    writes_over: bool


@dataclass(frozen=True)
class Storages:
    """The storages of a graph that count.

    Attributes:
        sizes: bytes of each.
        given: those that are there before the first step.
        live_out: those that live on after the last.
    """

    sizes: Mapping[str, int]
    given: frozenset[str]
    live_out: frozenset[str]


def live(context: ScheduleContext, units: Sequence[Unit], removed: Iterable[str]) -> Live:
    """The bytes that units need, without those of buffers that stay inside a kernel."""
    found = storages(context, removed)
    return Live([_step(unit, found, context) for unit in units], found)


def storages(context: ScheduleContext, removed: Iterable[str] = ()) -> Storages:
    """The storages of a graph, without buffers inside a kernel and those in memory that processes share."""
    graph, roots, hint = context.graph, context.roots, context.hint
    gone, sizes, given = set(removed), dict[str, int](), set[str]()
    for node in graph.nodes:
        if isinstance(node, Collective) and node.op.startswith(IN_SHARED_MEMORY):
            gone.update(node.writes())
    saved = saved_inputs(graph)
    for name, buffer in graph.buffers.items():
        if name not in gone and (buffer.kind == "temp" or name in saved):
            root = roots[name]
            sizes[root] = max(sizes.get(root, 0), max(0, hint(buffer.storage)) * buffer.itemsize)
            if name in saved:
                given.add(root)
    live_out = frozenset(roots[name] for name in graph.output_buffers())
    return Storages(sizes, frozenset(given), live_out)


def saved_inputs(graph: Graph) -> frozenset[str]:
    """What a backward gets from its forward, and can release once it was read."""
    if graph.kind != "backward":
        return frozenset()
    tensors = (item.name for item in graph.inputs if item.kind == "tensor")
    return frozenset(name for name in tensors if not name.startswith(_CALLERS))


def _step(unit: Unit, found: Storages, context: ScheduleContext) -> Step:
    roots = context.roots
    touches = tuple(dict.fromkeys(roots[name] for name in unit.seen if roots[name] in found.sizes))
    node = unit.members[0].node
    if not isinstance(node, ExternCall):
        return Step(touches, 0, True)
    library = node.op.partition(".")[0]
    lays_out = library != "aten" and comes_with_torch(library) and isinstance(node.args[0], View)
    scratch = _laid_out(node.args[0], context.hint) if lays_out else 0
    return Step(touches, scratch, node.op in ADDS_IN_PLACE)


def _laid_out(view: View, hint: Callable[[IndexLike], int]) -> int:
    """Bytes of the copy that a library of torch's makes of an operand whose rows do not follow each other."""
    plain = view.stride[-1] == 1 or view.size[-1] == 1
    elements = 0 if plain else 1
    for size in view.size:
        elements *= hint(size)
    return elements * (_UNKNOWN // 2 if view.dtype is None else view.dtype.itemsize)


class Live:
    """Bytes in use while steps run in some order."""

    def __init__(self, steps: Sequence[Step], found: Storages) -> None:
        self.steps, self.storages = steps, found
        self.begin = sum(found.sizes[root] for root in found.given)

    def profile(self, order: Sequence[int]) -> list[tuple[int, int]]:
        """Bytes during and after each step, of all of them in this order."""
        uses: dict[str, int] = {}
        for step in self.steps:
            for root in step.touches:
                uses[root] = uses.get(root, 0) + 1
        return list(self.run(order, self.begin, set(self.storages.given), uses))

    def run(
        self, order: Sequence[int], before: int, there: set[str], uses: dict[str, int]
    ) -> Iterator[tuple[int, int]]:
        """Bytes during and after each of some steps.

        Args:
            order: the steps.
            before: bytes in use before the first.
            there: storages in use then; changed.
            uses: how many steps from there on touch each storage; changed.
        """
        sizes, live_out = self.storages.sizes, self.storages.live_out
        for number in order:
            step = self.steps[number]
            made: list[int] = []
            free: list[int] = []
            after = before
            for root in step.touches:
                uses[root] -= 1
                dies = not uses[root] and root not in live_out
                if root not in there:
                    there.add(root)
                    made.append(sizes[root])
                    after += 0 if dies else sizes[root]
                elif dies:
                    free.append(sizes[root])
                    after -= sizes[root]
            during = before + sum(made) + step.scratch
            if step.writes_over:
                during -= _shared(made, free)
            yield during, after
            before = after


def _shared(made: Iterable[int], free: Sequence[int]) -> int:
    """Bytes of results that are as large as an operand that dies, each operand taken once."""
    left, total = list(free), 0
    for size in made:
        if size in left:
            left.remove(size)
            total += size
    return total
