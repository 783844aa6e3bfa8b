"""What a period became, under the names of another period."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, TypeVar

from polyfuse.compiler.layers.names import compared
from polyfuse.ir.expr import Access, Expr, loads, moved, rewrite
from polyfuse.ir.nodes import Node, Origin, View
from polyfuse.ir.records import changed
from polyfuse.schedule import Call, Launch
from polyfuse.symbolic import Index

__all__ = ["Renaming"]

_NAMELESS = frozenset(
    {"axes", "raxes", "index", "kind", "mode", "out", "ordered", "fallback", "group", "symbols"}
)
"""Fields of nodes that hold no name."""

_N = TypeVar("_N", bound=Node)


class Renaming:
    """New names for buffers, nodes and objects, and for the traced nodes that these come from.

    Args:
        names: old to new.
        origins: what stands for each traced node.
        holding: which fields of each node have names of it, found by the first renaming and used by others
            of the very same names.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        origins: Mapping[str, Origin],
        holding: dict[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._names, self._origins = names, origins
        self._holding = {} if holding is None else holding
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
            holding = self._holding.get(node.name)
            fields = self._fields(node, _named(kind) if holding is None else holding)
            if holding is None:
                self._holding[node.name] = tuple(fields)
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
        if root.op == "load" and not root.args:
            return self._read(root)
        if not any(read.buffer in self._names for read in loads(root)):
            return root
        return rewrite(root, self._read, self._expressions)

    def _read(self, expr: Expr) -> Expr:
        if expr.op != "load" or expr.buffer not in self._names:
            return expr
        return moved(expr, expr.index, self._names[expr.buffer])


@cache
def _named(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that may hold names."""
    return tuple(name for name in compared(kind) if name not in _NAMELESS)
