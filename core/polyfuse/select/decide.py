"""The stage `select`: who does each call of a graph that can be done in several ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyfuse.base.log import warn_once
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import TemplateCall
from polyfuse.plugin import Backend
from polyfuse.schedule import Decision
from polyfuse.select.choose import Chosen, assign
from polyfuse.select.expand import Taken
from polyfuse.select.folds import accepted_folds
from polyfuse.select.offers import Offer, offers
from polyfuse.select.product_race import race_products
from polyfuse.select.tuner import Tuner

__all__ = ["choose"]


def choose(graph: Graph, claimed: Mapping[str, Backend], tuner: Tuner) -> Chosen:
    """Decide for every call whether a library does it, a backend generates it, or a plugin has something
    else for it.
    """
    wanted = tuner.settings.gemm
    as_eager = wanted == "known" and tuner.settings.numerics == "eager"  # another library rounds otherwise
    if wanted == "library" or as_eager:
        return Chosen(graph, claimed, ())
    decisions: list[Decision] = []
    if wanted == "known":
        return assign(graph, claimed, _known(tuner, graph, decisions), decisions)
    if wanted == "generated":
        found = offers(graph, tuner.backends, decisions, racing=False)
        first = {offer.call.name: offer.generated[0].taken for offer in found}
        winners = accepted_folds(tuner, graph, claimed, first, decisions)
    else:
        choices, kept = tuner.choices(graph, decisions), tuner.kept(graph)
        found = offers(graph, tuner.backends, decisions, choices, racing=True, kept=kept)
        winners, milliseconds = _raced(tuner, graph, claimed, found, decisions)
        return replace(assign(graph, claimed, winners, decisions), milliseconds=milliseconds)
    return assign(graph, claimed, winners, decisions)


def _known(tuner: Tuner, graph: Graph, decisions: list[Decision]) -> Mapping[str, Taken]:
    """The calls that plugins know to be faster on this machine in another way; nothing is timed."""
    ask = tuner.choices(graph, decisions, known=True)
    taken: dict[str, Taken] = {}
    for node in graph.nodes:
        if not isinstance(node, TemplateCall):
            continue
        device = next((graph.buffers[name].device for name in node.writes()), "cpu")
        found = ask(node, device.partition(":")[0])
        if found:
            taken[node.name] = found[0].taken
            decisions.append(Decision("choice", node.name, found[0].name, "known to be faster here"))
    return taken


def _raced(
    tuner: Tuner,
    graph: Graph,
    claimed: Mapping[str, Backend],
    found: Sequence[Offer],
    decisions: list[Decision],
) -> tuple[Mapping[str, Taken], float]:
    """What wins, and the milliseconds of all; nothing, with one warning, where racing itself fails: then
    libraries do all calls.
    """
    try:
        return race_products(tuner, graph, claimed, found, decisions)
    except Exception as error:
        if tuner.settings.strict:
            raise
        reason = f"{type(error).__name__}: {error}"
        warn_once("select", f"calls are left to libraries, because racing failed ({reason})", key=reason)
        return {}, 0.0
