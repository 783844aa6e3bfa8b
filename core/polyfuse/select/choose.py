"""The choice of an implementation for each matrix product of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from polyfuse.base.settings import Settings
from polyfuse.ir.graph import Graph
from polyfuse.plugin import Backend
from polyfuse.schedule import Decision
from polyfuse.select.expand import expanded
from polyfuse.select.offers import Backends, Offer, offers

__all__ = ["Chosen", "Racer", "choose"]

Racer = Callable[[Graph, Sequence[Offer], list[Decision]], Mapping[str, Backend]]
"""Times implementations: of the calls in a graph with these offers, those that a backend should generate."""


@dataclass(frozen=True)
class Chosen:
    """A graph in which what backends generate stands as loops.

    Attributes:
        graph: with loops in place of calls.
        backends: who generates these loops, by the name of the node.
        decisions: what was chosen, and what was refused, with reasons.
    """

    graph: Graph
    backends: Mapping[str, Backend]
    decisions: tuple[Decision, ...]


def choose(graph: Graph, settings: Settings, backends: Backends, race: Racer) -> Chosen:
    """Decide for every matrix product whether a library computes it or a backend generates it.

    Args:
        backends: backends for a device type, in the order in which they are asked.
        race: finds the fastest.
    """
    if settings.matrix_products == "library":
        return Chosen(graph, {}, ())
    decisions: list[Decision] = []
    found = offers(graph, backends, decisions, racing=settings.matrix_products == "fastest")
    if settings.matrix_products == "generated":
        winners: Mapping[str, Backend] = {offer.call.name: offer.backends[0] for offer in found}
    else:
        winners = race(graph, found, decisions)
    return assign(graph, found, winners, decisions)


def assign(
    graph: Graph, found: Sequence[Offer], winners: Mapping[str, Backend], decisions: Sequence[Decision] = ()
) -> Chosen:
    """`graph` with the calls that backends won as loops of theirs."""
    won = [offer for offer in found if offer.call.name in winners]
    named = {node.name: winners[offer.call.name] for offer in won for node in offer.form.nodes}
    return Chosen(expanded(graph, {offer.call.name: offer.form for offer in won}), named, tuple(decisions))
