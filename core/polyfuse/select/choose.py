"""The choice of an implementation for each call of a graph that has several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyfuse.ir.graph import Graph
from polyfuse.plugin import Backend
from polyfuse.schedule import Decision
from polyfuse.select.expand import Taken, expanded

__all__ = ["Chosen", "assign"]


@dataclass(frozen=True)
class Chosen:
    """A graph in which what won stands in place of calls.

    Attributes:
        graph: with other nodes in place of calls.
        backends: who generates each loop, by the name of the node.
        decisions: what was chosen, and what was refused, with reasons.
        milliseconds: of the calls that were raced, all together, as they are done now.
        folded: names of reductions that are begun in the kernel of the product whose results they read.
    """

    graph: Graph
    backends: Mapping[str, Backend]
    decisions: tuple[Decision, ...]
    milliseconds: float = 0.0
    folded: frozenset[str] = frozenset()


def assign(
    graph: Graph,
    claimed: Mapping[str, Backend],
    taken: Mapping[str, Taken],
    decisions: Sequence[Decision] = (),
) -> Chosen:
    """`graph` with each call that is named done in another way. `claimed`: who generates its own loops."""
    backends = {
        node.name: item.backend for item in taken.values() if item.backend is not None for node in item.nodes
    }
    folded = frozenset(name for item in taken.values() for name in item.folds)
    return Chosen(expanded(graph, taken), {**claimed, **backends}, tuple(decisions), folded=folded)
