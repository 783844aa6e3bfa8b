"""What a period became, under the names of another period."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from typing import Any, TypeVar

from polyfuse.compiler.layers.names import compared
from polyfuse.ir.expr import Access, Expr, loads, moved, walk
from polyfuse.ir.nodes import Node, Origin, View
from polyfuse.ir.records import changed
from polyfuse.schedule import Call, Launch
from polyfuse.symbolic import Index

_NAMELESS = frozenset(
    {"axes", "raxes", "index", "kind", "mode", "out", "ordered", "fallback", "group", "symbols"}
)
"""Fields of nodes that hold no name."""

_N = TypeVar("_N", bound=Node)


@dataclass(frozen=True)
class Found:
    """Where the names are, found by the first of several renamings of the very same names.

    Attributes:
        fields: of each node, those that have names.
        parts: of each expression, what is below it and has names, operands first.
    """

    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    parts: dict[Expr, tuple[Expr, ...]] = field(default_factory=dict)


class Renaming:
    """New names for buffers, nodes and objects, and for the traced nodes that these come from.

    Args:
        names: old to new.
        origins: what stands for each traced node.
        found: what renamings of the very same names share.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        origins: Mapping[str, Origin],
        found: Found | None = None,
    ) -> None:
        self._names, self._origins = names, origins
        self._found = Found() if found is None else found
        self._expressions: dict[Expr, Expr] = {}
        self._nodes: dict[str, Node] = {}

    def name(self, name: str) -> str:
        """A name that may be new."""
        return self._names.get(name, name)

    def names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names that may be new."""
        return tuple([self._names.get(name, name) for name in names])

    def value(self, value: Any) -> Any:
        """A field of a node, with new names; the same object where there are none in it."""
        if isinstance(value, str):
            return self._names.get(value, value)
        if isinstance(value, Expr):
            return self._expression(value)
        if isinstance(value, View):
            new = self._names.get(value.buffer)
            return value if new is None else View(new, value.size, value.stride, value.offset, value.dtype)
        if isinstance(value, (tuple, list)) and not isinstance(value, Access):
            made = [self.value(item) for item in value]
            return type(value)(made) if any(a is not b for a, b in zip(made, value, strict=True)) else value
        if is_dataclass(value) and not isinstance(value, (type, Index)):
            fields = self._fields(value, _named(type(value)))
            return changed(value, **fields) if fields else value
        return value

    def node(self, node: _N) -> _N:
        """A node of the graph; the same one for each step that has it."""
        found = self._nodes.get(node.name)
        if found is None:
            kind: Any = type(node)
            holding = self._found.fields.get(node.name)
            fields = self._fields(node, _named(kind) if holding is None else holding)
            if holding is None:
                self._found.fields[node.name] = tuple(fields)
            found = self._nodes[node.name] = changed(node, origins=self.origins(node.origins), **fields)
        assert isinstance(found, type(node))
        return found

    def origins(self, origins: tuple[Origin, ...]) -> tuple[Origin, ...]:
        """Where a node comes from."""
        known = self._origins
        return tuple([known.get(origin.fx, origin) for origin in origins])

    def step(self, step: Launch | Call, suffix: str) -> Launch | Call:
        """A step of the schedule, under a name of its own."""
        if isinstance(step, Call):
            return changed(
                step, node=self.node(step.node), reads=self.names(step.reads), writes=self.names(step.writes)
            )
        return changed(
            step,
            name=step.name + suffix,
            operands=self.value(step.operands),
            nodes=tuple([self.node(node) for node in step.nodes]),
            reads=self.names(step.reads),
            writes=self.names(step.writes),
            inplace=self.value(step.inplace),
            merges=tuple(
                (frozenset(map(self.name, one)), frozenset(map(self.name, two))) for one, two in step.merges
            ),
        )

    def _fields(self, value: Any, names: Iterable[str]) -> dict[str, Any]:
        """The fields of a dataclass that change, of those that may."""
        found = {}
        for name in names:
            old = getattr(value, name)
            new = self.value(old)
            if new is not old:
                found[name] = new
        return found

    def _expression(self, root: Expr) -> Expr:
        done = self._expressions
        known = done.get(root)
        if known is not None:
            return known
        parts = self._found.parts.get(root)
        if parts is None:
            parts = self._found.parts[root] = self._parts(root)
        for expr in parts:
            if expr in done:
                continue
            args = tuple([done.get(arg, arg) for arg in expr.args]) if expr.args else ()
            made = Expr(expr.op, args, expr.dtype, expr.payload) if args else expr
            if expr.op == "load" and expr.buffer in self._names:
                made = moved(made, expr.index, self._names[expr.buffer])
            done[expr] = made
        return done.setdefault(root, root)

    def _parts(self, root: Expr) -> tuple[Expr, ...]:
        """What changes of an expression, operands first."""
        names, found = self._names, dict[Expr, None]()
        if any(read.buffer in names for read in loads(root)):
            for expr in walk(root):
                if (expr.op == "load" and expr.buffer in names) or any(arg in found for arg in expr.args):
                    found[expr] = None
        return tuple(found)


@cache
def _named(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that may hold names."""
    return tuple(name for name in compared(kind) if name not in _NAMELESS)
