"""What a unit computes, whatever its buffers and axes are called: the same for all equal layers of a network.

Kernels are made from outlines, which hold no name of the graph. So units with equal outlines share a kernel,
which is made once and launched with the buffers of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple

from polyfuse.ir.expr import Access, Expr
from polyfuse.ir.nodes import Buffer, LoopNode, Pointwise, Reduction, Scan, Scatter
from polyfuse.ir.types import DType
from polyfuse.schedule.fusion.space import Space
from polyfuse.schedule.fusion.units import Member, Unit
from polyfuse.symbolic import Index, IndexLike, axis, axis_name, axis_size, substitute


class BufferFacts(NamedTuple):
    """What a kernel depends on of a buffer.

    Attributes:
        dtype: type of an element.
        extent: elements that it spans.
        aligned: whether it starts at an aligned address.
        removed: whether only this kernel needs it, so that it is not written.
    """

    dtype: DType | None
    extent: IndexLike
    aligned: bool
    removed: bool


class _Operation(NamedTuple):
    """An expression with operands, which are named by their positions among the outline's values."""

    op: str
    args: tuple[int, ...]
    dtype: DType
    payload: Any


_Value = Expr | _Operation
"""An expression that has neither operands nor a buffer stands for itself."""


class _Node(NamedTuple):
    """A loop node with its own axes, without its name and its origins.

    Attributes:
        store: the index at which it writes.
        facts: what only nodes of its type have.
        mapping: its axes in terms of the outline's.
    """

    type: type[LoopNode]
    axes: tuple[Index, ...]
    raxes: tuple[Index, ...]
    outputs: tuple[str, ...]
    store: IndexLike
    values: tuple[int, ...]
    facts: tuple[object, ...]
    mapping: tuple[tuple[str, IndexLike], ...]
    level: str


@dataclass(frozen=True)
class Outline:
    """A unit without names of its graph.

    Attributes:
        backend: name of the backend that claimed its nodes.
        device: as buffers name it.
        space: its axes, which are numbered.
        buffers: by their neutral names, in the order in which they are met.
        values: every expression, operands first.
        nodes: in program order.
    """

    backend: str
    device: str
    space: Space
    buffers: tuple[tuple[str, BufferFacts], ...]
    values: tuple[_Value, ...]
    nodes: tuple[_Node, ...]

    @property
    def has_scan(self) -> bool:
        """Whether some node is a scan, whose loop axis must stay whole."""
        return any(issubclass(node.type, Scan) for node in self.nodes)


class _Naming:
    """Neutral names for the buffers, expressions and axes of a unit, in the order in which they are met."""

    def __init__(
        self,
        space: Space,
        buffers: Mapping[str, Buffer],
        removed: AbstractSet[str],
        aligned: AbstractSet[str],
    ) -> None:
        self._known, self._removed, self._aligned = buffers, removed, aligned
        self.names: dict[str, str] = {}
        self.facts: list[tuple[str, BufferFacts]] = []
        self.values: list[_Value] = []
        self._positions: dict[Expr, int] = {}
        old = (*space.axes, *space.raxes)
        new = tuple(axis(f"u{i}", axis_size(var)) for i, var in enumerate(old))
        self.space = Space(new[: len(space.axes)], new[len(space.axes) :])
        self._axes: dict[str, IndexLike] = dict(zip(map(axis_name, old), new, strict=True))
        self._moved: dict[IndexLike, IndexLike] = dict(zip(old, new, strict=True))

    def buffer(self, name: str) -> str:
        """The neutral name of a buffer; an unused result, which has no name, keeps none."""
        found = self.names.get(name)
        if found is None and name:
            found = self.names[name] = f"b{len(self.names)}"
            buffer = self._known[name]
            extent = buffer.storage
            facts = BufferFacts(buffer.dtype, extent, name in self._aligned, name in self._removed)
            self.facts.append((found, facts))
        return found or ""

    def index(self, index: IndexLike) -> IndexLike:
        """An index over the unit's axes, over those of the outline."""
        found = self._moved.get(index)
        if found is None:
            found = self._moved[index] = substitute(index, self._axes)
        return found

    def value(self, root: Expr) -> int:
        """The position of an expression among the values."""
        positions, stack = self._positions, [root]
        while stack:
            expr = stack[-1]
            missing = [arg for arg in expr.args if arg not in positions]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if expr not in positions:
                positions[expr] = len(self.values)
                self.values.append(self._stated(expr))
        return positions[root]

    def _stated(self, expr: Expr) -> _Value:
        payload = expr.payload
        if expr.op == "load":
            access = expr.access
            payload = Access(self.buffer(access.buffer), access.index, access.indirect, access.masked)
        elif not expr.args:
            return expr
        return _Operation(expr.op, tuple(self._positions[a] for a in expr.args), expr.dtype, payload)


def outline_of(
    unit: Unit, buffers: Mapping[str, Buffer], removed: AbstractSet[str], aligned: AbstractSet[str]
) -> tuple[Outline, dict[str, str]]:
    """The outline of a unit of loops, and the buffer that each neutral name stands for.

    Args:
        buffers: of the graph, by name.
        removed: those that only one kernel needs.
        aligned: those at addresses that are aligned for the unit's backend.
    """
    naming = _Naming(unit.space, buffers, removed, aligned)
    nodes = tuple(_node(member, naming) for member in unit.members)
    outline = Outline(
        unit.backend, unit.device, naming.space, tuple(naming.facts), tuple(naming.values), nodes
    )
    return outline, {neutral: name for name, neutral in naming.names.items()}


def _node(member: Member, naming: _Naming) -> _Node:
    node = member.node
    outputs: tuple[str, ...]
    facts: tuple[object, ...]
    if isinstance(node, Pointwise):
        outputs, facts = (node.output,), ()
    elif isinstance(node, (Reduction, Scan)):
        outputs, facts = node.outputs, (node.kind,)
    elif isinstance(node, Scatter):
        outputs, facts = (node.target,), (len(node.indirect), node.mode, node.mask is not None)
    else:
        raise TypeError(f"outlines do not know {type(node).__name__}; add its rule beside the others")
    values = tuple(naming.value(expr) for expr in node.expressions())
    return _Node(
        type(node),
        node.axes,
        node.raxes,
        tuple(naming.buffer(name) for name in outputs),
        node.index,
        values,
        facts,
        tuple((name, naming.index(index)) for name, index in member.mapping.items()),
        member.level,
    )


def members_of(outline: Outline) -> tuple[Member, ...]:
    """The members of a unit with this outline, which have its neutral names."""
    values: list[Expr] = []
    for item in outline.values:
        if isinstance(item, Expr):
            values.append(item)
        else:
            args = tuple(values[at] for at in item.args)
            values.append(Expr(item.op, args, item.dtype, item.payload))
    return tuple(
        Member(_loop_node(node, tuple(values[at] for at in node.values)), at, dict(node.mapping), node.level)
        for at, node in enumerate(outline.nodes)
    )


def _loop_node(node: _Node, values: tuple[Expr, ...]) -> LoopNode:
    if issubclass(node.type, Pointwise):
        return node.type("", node.axes, node.raxes, node.outputs[0], node.store, *values)
    if issubclass(node.type, (Reduction, Scan)):
        (kind,) = node.facts
        return node.type("", node.axes, node.raxes, node.outputs, node.store, str(kind), values)
    assert issubclass(node.type, Scatter)
    count, mode, masked = node.facts
    assert isinstance(count, int)
    indirect, mask = values[1 : 1 + count], values[-1] if masked else None
    return node.type(
        "", node.axes, node.raxes, node.outputs[0], node.store, indirect, values[0], str(mode), mask
    )
