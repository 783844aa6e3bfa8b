"""Units: nodes that will be one kernel (or one call), in a common iteration space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.nodes import LoopNode, Node, Reduction, Scan
from polyfuse.schedule.access import Access, accesses
from polyfuse.schedule.fusion.space import Space, compose
from polyfuse.symbolic import Index, IndexLike, axis_name, axis_size, substitute


@dataclass(frozen=True)
class Member:
    """A node inside a unit.

    Attributes:
        node: the node.
        position: in program order.
        mapping: its axis names in terms of the unit's axes.
        level: ``"P"`` if it runs once per parallel point, ``"R"`` if at every point of the unit's loop axes.
    """

    node: Node
    position: int
    mapping: Mapping[str, IndexLike]
    level: str


@dataclass(frozen=True)
class UnitAccess:
    """An access in the unit's coordinates, with the level of the iteration that makes it."""

    access: Access
    level: str
    member: int


@dataclass(eq=False)
class Unit:
    """Nodes that become one kernel or call. It lives only while the scheduler runs.

    Attributes:
        members: in program order.
        space: common axes; empty for calls.
        accesses: what the members read and write, in the unit's coordinates.
        backend: name of the backend that claimed its nodes; empty for calls.
        bits, before, after: bit sets of node positions: its own, its ancestors', its descendants'.
        merges: the bit sets of the units that were merged to it, pair by pair, the last pair last.
        seen: the accesses to each buffer.
        reads, writes: buffers, in order.
    """

    members: tuple[Member, ...]
    space: Space
    accesses: tuple[UnitAccess, ...]
    backend: str
    device: str
    is_call: bool
    before: int = 0
    after: int = 0
    merges: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        self.bits = sum(1 << member.position for member in self.members)
        self.seen: dict[str, list[UnitAccess]] = {}
        for item in self.accesses:
            self.seen.setdefault(item.access.buffer, []).append(item)
        self.reads, self.writes = (
            dict.fromkeys(a.access.buffer for a in self.accesses if a.access.write is write)
            for write in (False, True)
        )

    @property
    def first(self) -> int:
        """Earliest program position."""
        return self.members[0].position

    @property
    def last(self) -> int:
        """Latest program position."""
        return self.members[-1].position

    @property
    def is_reduction(self) -> bool:
        """Whether some member carries values along loop axes."""
        return any(isinstance(m.node, (Reduction, Scan)) for m in self.members)

    @property
    def has_scan(self) -> bool:
        """Whether some member is a scan, whose loop axis must stay whole."""
        return any(isinstance(m.node, Scan) for m in self.members)

    def names(self) -> str:
        """Member names, joined, for reports."""
        return "+".join(m.node.name for m in self.members)


def loop_unit(
    node: LoopNode,
    position: int,
    backend: str,
    device: str,
    fresh: Callable[[IndexLike], Index],
) -> Unit:
    """A unit of one loop node; axes of extent 1 are dropped."""
    mapping: dict[str, IndexLike] = {}
    kept: list[list[Index]] = [[], []]
    for out, axes in zip(kept, (node.axes, node.raxes), strict=True):
        for var in axes:
            size = axis_size(var)
            if size == 1:
                mapping[axis_name(var)] = 0
            else:
                mapping[axis_name(var)] = new = fresh(size)
                out.append(new)
    if isinstance(node, (Reduction, Scan)) and not kept[1]:
        # a carried value over one element still needs its loop: the reduction of one element is that element
        mapping[axis_name(node.raxes[-1])] = new = fresh(1)
        kept[1].append(new)
    level = "R" if node.raxes else "P"
    found = tuple(
        UnitAccess(a, "P" if a.write and isinstance(node, Reduction) else level, 0)
        for a in accesses(node, mapping)
    )
    return Unit(
        (Member(node, position, mapping, level),),
        Space(tuple(kept[0]), tuple(kept[1])),
        found,
        backend,
        device,
        False,
    )


def call_unit(node: Node, position: int) -> Unit:
    """A unit that is one extern call."""
    found = tuple(UnitAccess(a, "P", 0) for a in accesses(node))
    return Unit((Member(node, position, {}, "P"),), Space((), ()), found, "", "", True)


def remap(
    unit: Unit, mapping: Mapping[str, IndexLike], level: str | None
) -> tuple[tuple[Member, ...], tuple[UnitAccess, ...]]:
    """Members and accesses of `unit` in another space."""
    members = tuple(
        replace(m, mapping=compose(m.mapping, mapping), level=level or m.level) for m in unit.members
    )
    found = tuple(
        replace(
            a,
            access=a.access
            if a.access.index is None
            else replace(a.access, index=substitute(a.access.index, mapping)),
            level=level or a.level,
        )
        for a in unit.accesses
    )
    return members, found


def merge(
    first: tuple[tuple[Member, ...], tuple[UnitAccess, ...]],
    second: tuple[tuple[Member, ...], tuple[UnitAccess, ...]],
    space: Space,
    like: Unit,
) -> Unit:
    """One unit of both sides' members, in program order."""
    tagged: list[tuple[Member, int, int]] = [(m, 0, i) for i, m in enumerate(first[0])]
    tagged += [(m, 1, i) for i, m in enumerate(second[0])]
    tagged.sort(key=lambda item: item[0].position)
    order = {(side, i): at for at, (_, side, i) in enumerate(tagged)}
    found = [
        replace(a, member=order[side, a.member])
        for side, part in enumerate((first[1], second[1]))
        for a in part
    ]
    members = tuple(m for m, _, _ in tagged)
    return Unit(members, space, tuple(found), like.backend, like.device, False)


def touched(units: Sequence[Unit]) -> dict[str, list[int]]:
    """For every buffer, the positions in `units` of those that touch it."""
    out: dict[str, list[int]] = {}
    for i, unit in enumerate(units):
        for buffer in unit.seen:
            out.setdefault(buffer, []).append(i)
    return out
