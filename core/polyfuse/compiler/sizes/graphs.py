"""The graph of a class.

Its symbols have the bounds of the class, or are multiples, so that what the scheduler and backends derive
from bounds, from factors of strides and from example sizes fits all sizes of the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polyfuse.compiler.session import CompileSession
from polyfuse.compiler.sizes.classes import ClassKey, SizeClasses, SizeSymbol
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Collective, ExternCall
from polyfuse.ir.resized import host_symbols, resized, storage_symbols
from polyfuse.plugin import TargetInfo
from polyfuse.schedule import Claims
from polyfuse.symbolic import IndexLike, as_atom, symbol


@dataclass(frozen=True)
class SizedGraph:
    """A graph with claims that gets a program for each class of its sizes."""

    claims: Claims
    classes: SizeClasses

    @staticmethod
    def of(claims: Claims, session: CompileSession) -> SizedGraph | None:
        """The graph, if it has several classes of sizes."""
        graph = claims.graph
        if not session.settings.size_classes or not graph.symbol_hints:
            return None
        devices = {graph.buffers[name].device for node in graph.nodes for name in node.writes()}
        classes = classes_of(graph, [session.target_info(device) for device in sorted(devices)])
        return None if classes is None else SizedGraph(claims, classes)

    def first(self) -> Claims:
        """The graph of the class of the sizes with which it was captured."""
        return self.of_class(self.classes.key(self.classes.met), self.classes.met)

    def of_class(self, key: ClassKey, sizes: Sequence[Any]) -> Claims:
        """The graph of a class, made for some sizes of it; of all sizes for an empty key."""
        if not key:
            return self.claims
        graph, classes = self.claims.graph, self.classes
        hints = dict(graph.symbol_hints)
        new: dict[str, IndexLike] = {}
        for item, (number, is_multiple), size in zip(classes.symbols, key, sizes):
            if item.position is None:  # the next call may have any value
                hints[item.name] = size
                continue
            lo, hi = classes.bounds(item, number)
            if is_multiple:
                step = classes.multiple
                name = f"{item.name}_{step}th"
                del hints[item.name]
                hints[name] = size // step
                new[item.name] = symbol(name, -(-lo // step), None if hi is None else hi // step) * step
            else:
                hints[item.name] = size
                new[item.name] = symbol(item.name, lo, hi)
        return replace(self.claims, graph=resized(graph, new, hints))


def classes_of(graph: Graph, infos: Iterable[TargetInfo]) -> SizeClasses | None:
    """The classes of a graph for the devices on which it runs; None where one program serves all sizes.

    A graph with collectives has one program: other processes, whose sizes may differ, start theirs in the
    same order.
    """
    infos = tuple(infos)
    first = tuple(sorted({n for info in infos for n in info.size_classes}))
    multiple = max((info.size_multiple for info in infos), default=1)
    if (not first and multiple <= 1) or any(isinstance(node, Collective) for node in graph.nodes):
        return None
    stored = storage_symbols(graph)
    by_host = host_symbols(graph) if multiple > 1 else frozenset()
    found: dict[str, SizeSymbol] = {}
    for position, item in enumerate(graph.inputs):
        atom = None if item.kind != "symint" or item.value is None else as_atom(item.value)
        if atom is None or atom.kind != "sym" or atom.name not in stored or atom.name in found:
            continue
        if atom.name in graph.symbol_hints:
            found[atom.name] = SizeSymbol(atom.name, position, atom.lo, atom.hi, atom.name not in by_host)
    if first:
        computed = [name for node in graph.nodes if isinstance(node, ExternCall) for name, _ in node.symbols]
        for name in computed:
            if name in stored and name in graph.symbol_hints and name not in found:
                found[name] = SizeSymbol(name, None, 0, None, False)
    met = tuple(graph.symbol_hints[name] for name in found)
    return SizeClasses(tuple(found.values()), met, first, multiple) if found else None
