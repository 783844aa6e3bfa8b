"""Symbols of a graph: which there are, and where a call finds their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import sympy
import torch

from polyfuse.torch_compat.tracing import shapes

if TYPE_CHECKING:
    from polyfuse.frontend.graph import AtenGraph

__all__ = ["SymbolSource", "symbol_inputs", "symbol_sources", "symbols_of_graph"]

Place: TypeAlias = Literal["value", "size", "stride", "offset"]


@dataclass(frozen=True)
class SymbolSource:
    """Where a symbol's value is found in a call: input `index` itself, or a size, stride or offset of it."""

    symbol: sympy.Symbol
    index: int
    place: Place
    dim: int = 0


def symbol_inputs(graph: AtenGraph) -> tuple[tuple[int, Any], ...]:
    """Inputs that are symbolic numbers: position and expression (usually a lone symbol)."""
    return tuple((i.index, shapes.expr_of(i.value)) for i in graph.inputs if i.kind == "symbol")


def symbol_sources(graph: AtenGraph) -> Mapping[sympy.Symbol, SymbolSource]:
    """For every symbol that some input shows plainly, the cheapest place to read it from.

    Symbols that come from data, or appear only inside larger expressions, are missing.
    """
    found: dict[sympy.Symbol, SymbolSource] = {}
    for place in ("value", "size", "stride", "offset"):
        for item in graph.inputs:
            for dim, part in enumerate(_parts(item.value, place)):
                expr = shapes.expr_of(part)
                if isinstance(expr, sympy.Symbol):
                    found.setdefault(expr, SymbolSource(expr, item.index, place, dim))
    return {symbol: found[symbol] for symbol in sorted(found, key=lambda s: (len(s.name), s.name))}


def _parts(value: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(value, torch.Tensor):
        return (value,) if place == "value" and shapes.is_symbolic(value) else ()
    if place == "size":
        return tuple(value.shape)
    if value.layout != torch.strided:
        return ()
    if place == "stride":
        return tuple(value.stride())
    return (value.storage_offset(),) if place == "offset" else ()


def symbols_of_graph(graph: AtenGraph) -> tuple[sympy.Symbol, ...]:
    """Every symbol in the values of the graph's nodes, by name."""
    found: set[sympy.Symbol] = set()
    for node in graph.module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor | list | tuple) or shapes.is_symbolic(value):
            found.update(shapes.free_symbols(value))
    return tuple(sorted(found, key=lambda s: (len(s.name), s.name)))
