"""The stage `select`: who does each call of a graph that can be done in several ways."""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.ir.graph import Graph
from polyfuse.schedule import Decision
from polyfuse.select.choose import Chosen, assign
from polyfuse.select.expand import Taken
from polyfuse.select.offers import offers
from polyfuse.select.product_race import race_products
from polyfuse.select.tuner import Tuner

__all__ = ["choose"]


def choose(graph: Graph, tuner: Tuner) -> Chosen:
    """Decide for every call whether a library does it, a backend generates it, or a plugin has something
    else for it.
    """
    wanted = tuner.settings.matrix_products
    if wanted == "library":
        return Chosen(graph, {}, ())
    decisions: list[Decision] = []
    if wanted == "generated":
        found = offers(graph, tuner.backends, decisions, racing=False)
        winners: Mapping[str, Taken] = {offer.call.name: offer.generated[0].taken for offer in found}
    else:
        found = offers(graph, tuner.backends, decisions, tuner.choices(graph, decisions), racing=True)
        winners = race_products(tuner, graph, found, decisions)
    return assign(graph, winners, decisions)
