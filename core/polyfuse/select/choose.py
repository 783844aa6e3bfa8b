"""The choice of an implementation for each call of a graph that has several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyfuse.ir.graph import Graph
from polyfuse.plugin import Backend
from polyfuse.schedule import Decision
from polyfuse.select.expand import Taken, expanded, of_form
from polyfuse.select.offers import Offer

__all__ = ["Chosen", "Winner", "assign"]

Winner = Backend | Taken
"""Who does a call instead of the library: a backend that generates its loops, or what a choice offers."""


@dataclass(frozen=True)
class Chosen:
    """A graph in which what won stands in place of calls.

    Attributes:
        graph: with other nodes in place of calls.
        backends: who generates loops among these, by the name of the node.
        decisions: what was chosen, and what was refused, with reasons.
    """

    graph: Graph
    backends: Mapping[str, Backend]
    decisions: tuple[Decision, ...]


def assign(
    graph: Graph, found: Sequence[Offer], winners: Mapping[str, Winner], decisions: Sequence[Decision] = ()
) -> Chosen:
    """`graph` with each call done by its winner, if it has one."""
    taken: dict[str, Taken] = {}
    named: dict[str, Backend] = {}
    for offer in found:
        winner = winners.get(offer.call.name)
        if isinstance(winner, Taken):
            taken[offer.call.name] = winner
        elif winner is not None and offer.form is not None:
            taken[offer.call.name] = of_form(offer.form)
            named |= dict.fromkeys((node.name for node in offer.form.nodes), winner)
    return Chosen(expanded(graph, taken), named, tuple(decisions))
