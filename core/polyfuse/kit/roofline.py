"""How long a kernel takes at least: what is computed against what memory moves, and how much of a machine a
division into tiles puts to use.

Rough numbers, meant to compare configurations of one kernel (`Backend.estimate`), not to predict seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.ir.statements import Reduce
from polyfuse.kit.facts import KernelFacts


@dataclass(frozen=True)
class Work:
    """Operations and bytes of a kernel, on any machine.

    Attributes:
        operations: scalar operations, at all points together; a product and its sum count as two.
        moved: bytes of all its buffers, each counted once.
    """

    operations: float
    moved: float


@dataclass(frozen=True)
class Machine:
    """The speeds of a machine.

    Attributes:
        operations: in a second, of all units together.
        moved: bytes that memory gives or takes in a second.
        units: how many tiles run at a time.
        start: seconds in which a tile begins and ends.
    """

    operations: float
    moved: float
    units: int = 1
    start: float = 0.0


def work_of(kernel: Kernel, price: Callable[[str], float] = lambda op: 1.0) -> Work:
    """The work of a kernel at its example sizes.

    Args:
        price: of a scalar operation, in additions.
    """
    if kernel.parts:
        each = [work_of(part.kernel, price) for part in kernel.parts]
        return Work(sum(work.operations for work in each), sum(work.moved for work in each))
    facts = KernelFacts.of(kernel)
    points, steps = facts.points(facts.axes), facts.points(facts.raxes)
    operations = 0.0
    for section in kernel.sections:
        often = points * (steps if section.looped else 1)
        for stmt in section.body:
            if stmt.op in ("load", "store", "const", "index"):
                continue
            is_product = isinstance(stmt, Reduce) and stmt.kind in CONTRACTIONS
            operations += often * (2.0 if is_product else price(stmt.op))
    moved = sum(
        facts.example(arg.numel) * arg.dtype.itemsize * (2 if arg.kind == "inout" else 1)
        for arg in kernel.args
        if arg.numel is not None
    )
    return Work(operations, float(moved))


def fill(sizes: Iterable[tuple[int, int]]) -> float:
    """Which part of tiles is of use, given extents and the sides of a tile along them."""
    share = 1.0
    for extent, side in sizes:
        extent, side = max(1, extent), max(1, side)
        share *= extent / (-(-extent // side) * side)
    return share


def rounds(tiles: int, units: int) -> int:
    """How often all units take a tile; in the last round, some may have none."""
    return -(-max(1, tiles) // max(1, units))


def seconds(work: Work, machine: Machine, tiles: int, filled: float = 1.0, again: float = 0.0) -> float:
    """At least so long takes the work in that many equal tiles.

    Args:
        filled: which part of a tile is of use; the rest is computed in vain.
        again: bytes that are moved besides those that must be.
    """
    waves = rounds(tiles, machine.units)
    busy = tiles / (waves * machine.units)
    computing = work.operations / (machine.operations * filled * busy)
    # a few units cannot ask memory for all that it has; about a third of them can
    moving = (work.moved + again) / (machine.moved * min(1.0, 3 * busy))
    return max(computing, moving) + 0.1 * min(computing, moving) + waves * machine.start
