"""A graph with its shape symbols replaced: the same computation for some of its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from polyfuse.ir.expr import Expr, index_value, walk
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Node
from polyfuse.symbolic import Atom, Index, IndexLike, atoms, axis, free_symbols, substitute


def resized(graph: Graph, symbols: Mapping[str, IndexLike], hints: Mapping[str, int]) -> Graph:
    """The graph with symbols replaced by name, in all sizes, indices and expressions.

    Args:
        symbols: what stands for each symbol: one of the same name with other bounds, or a multiple of
            another one. None of them may occur in a size that only the host computes under another name.
        hints: example values of the symbols of the new graph.
    """
    change = _Resizing(symbols)
    return replace(
        graph,
        inputs=change.value(graph.inputs),
        outputs=change.value(graph.outputs),
        buffers={name: change.value(buffer) for name, buffer in graph.buffers.items()},
        nodes=tuple(change.node(node) for node in graph.nodes),
        symbol_hints=dict(hints),
    )


def storage_symbols(graph: Graph) -> frozenset[str]:
    """Symbols of which the size of some tensor depends."""
    sizes = {n for buffer in graph.buffers.values() for n in buffer.size if not isinstance(n, int)}
    return frozenset(name for size in sizes for name in free_symbols(size))


def host_symbols(graph: Graph) -> frozenset[str]:
    """Symbols that occur by name in the text of sizes that only the host computes."""
    change = _Resizing({})
    for part in (graph.inputs, graph.outputs, tuple(graph.buffers.values()), graph.nodes):
        change.value(part)
    return frozenset(
        name
        for index in change.seen
        for atom in _all_atoms(index)
        if atom.kind == "host"
        for argument in atom.args
        for name in free_symbols(argument)
    )


def _all_atoms(index: IndexLike) -> list[Atom]:
    """Every atom of an index, those in the extents of its axes too."""
    found = list(atoms(index))
    return found + [inner for atom in found if atom.kind == "axis" for inner in atoms(atom.args[0])]


class _Resizing:
    """Replaces symbols in nested data; equal indices and expressions are rebuilt once."""

    def __init__(self, symbols: Mapping[str, IndexLike]) -> None:
        self.symbols = symbols
        self.seen: dict[Index, IndexLike] = {}
        self._expressions: dict[Expr, Expr] = {}

    def node(self, node: Node) -> Node:
        """A node, with its origins."""
        changed: Node = self.value(node)
        return changed

    def value(self, value: Any) -> Any:
        """Any part of a graph."""
        if isinstance(value, Index):
            return self._index(value)
        if isinstance(value, Expr):
            return self._expression(value)
        if isinstance(value, tuple):
            parts = [self.value(item) for item in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if is_dataclass(value) and not isinstance(value, type):
            changes = {f.name: self.value(getattr(value, f.name)) for f in fields(value) if f.compare}
            same = all(getattr(value, name) is new for name, new in changes.items())
            return value if same else replace(value, **changes)
        return value

    def _index(self, index: Index) -> IndexLike:
        found = self.seen.get(index)
        if found is None:
            extents = {
                atom.name: axis(atom.name, substitute(atom.args[0], self.symbols))
                for atom in atoms(index)
                if atom.kind == "axis"
            }
            found = self.seen[index] = substitute(index, {**self.symbols, **extents})
        return found

    def _expression(self, root: Expr) -> Expr:
        for expr in walk(root):
            if expr in self._expressions:
                continue
            args = tuple(self._expressions[a] for a in expr.args)
            if expr.op in ("index", "size") and isinstance(expr.payload, Index):
                index = self._index(expr.payload)
                same = index is expr.payload
                new = expr if same else self._number(expr, index)
            else:
                payload = self.value(expr.payload) if expr.op == "load" else expr.payload
                same = args == expr.args and payload == expr.payload
                new = expr if same else Expr(expr.op, args, expr.dtype, payload)
            self._expressions[expr] = new
        return self._expressions[root]

    @staticmethod
    def _number(expr: Expr, index: IndexLike) -> Expr:
        return index_value(index) if isinstance(index, int) else Expr(expr.op, (), expr.dtype, index)
