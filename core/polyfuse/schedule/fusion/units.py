"""Units: nodes that will be one kernel (or one call), in a common iteration space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.nodes import LoopNode, Node, Reduction, Scan
from polyfuse.schedule.access import Access, accesses
from polyfuse.schedule.fusion.space import Renaming, Space, fresh_axes
from polyfuse.symbolic import Index, IndexLike, axis_name, axis_size


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


class UnitSpaces:
    """Spaces for units of one node, by the axes of the node. Names of axes are counted in each space from the
    first on, so that units of equal nodes are equal but for the buffers.
    """

    def __init__(self) -> None:
        self._made: dict[object, tuple[Space, Renaming]] = {}

    def of(self, node: LoopNode) -> tuple[Space, Renaming]:
        """The space of a unit of `node`, and the node's axes in it; those of extent 1 are dropped."""
        # a carried value over one element still needs its loop: the reduction of one element is that element
        carries = isinstance(node, (Reduction, Scan))
        key = node.axes, node.raxes, carries
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = _space_of(node, carries)
        return found


def _space_of(node: LoopNode, carries: bool) -> tuple[Space, Renaming]:
    fresh = fresh_axes()
    mapping: dict[str, IndexLike] = {}
    mapped: list[list[Index]] = [[], []]
    for out, axes in zip(mapped, (node.axes, node.raxes), strict=True):
        for var in axes:
            size = axis_size(var)
            if size == 1:
                mapping[axis_name(var)] = 0
            else:
                mapping[axis_name(var)] = new = fresh(size)
                out.append(new)
    if carries and not mapped[1]:
        mapping[axis_name(node.raxes[-1])] = new = fresh(1)
        mapped[1].append(new)
    return Space(tuple(mapped[0]), tuple(mapped[1])), Renaming(mapping)


def loop_unit(
    node: LoopNode,
    position: int,
    backend: str,
    device: str,
    spaces: UnitSpaces,
    found: Sequence[Access] | None = None,
) -> Unit:
    """A unit of one loop node.

    Args:
        found: the accesses of the node, where they are known already.
    """
    space, rename = spaces.of(node)
    level = "R" if node.raxes else "P"
    written = "P" if isinstance(node, Reduction) else level
    renamed = (_renamed(a, rename) for a in (accesses(node) if found is None else found))
    return Unit(
        (Member(node, position, rename.mapping, level),),
        space,
        tuple(UnitAccess(a, written if a.write else level, 0) for a in dict.fromkeys(renamed)),
        backend,
        device,
        False,
    )


def _renamed(access: Access, rename: Renaming) -> Access:
    if access.index is None:
        return access
    index = rename(access.index)
    return access if index is access.index else Access(access.buffer, index, access.write, access.mode)


def call_unit(node: Node, position: int) -> Unit:
    """A unit that is one extern call."""
    found = tuple(UnitAccess(a, "P", 0) for a in accesses(node))
    return Unit((Member(node, position, {}, "P"),), Space((), ()), found, "", "", True)


def remap(
    unit: Unit, rename: Renaming, level: str | None
) -> tuple[tuple[Member, ...], tuple[UnitAccess, ...]]:
    """Members and accesses of `unit` in another space."""
    if not rename.mapping and level is None:
        return unit.members, unit.accesses
    members = tuple(
        Member(
            m.node,
            m.position,
            {name: rename(value) for name, value in m.mapping.items()},
            level or m.level,
        )
        for m in unit.members
    )
    found = tuple(UnitAccess(_renamed(a.access, rename), level or a.level, a.member) for a in unit.accesses)
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
