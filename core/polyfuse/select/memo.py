"""What was chosen for a whole graph, so that in the next process it need not be scheduled with every
contender to find what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.digest import ir_digest
from polyfuse.ir.graph import Graph
from polyfuse.schedule import Decision
from polyfuse.select.offers import Offer
from polyfuse.select.tuner import Tuner

__all__ = ["Known", "memo_key", "recalled", "remember_choices"]


@dataclass(frozen=True)
class Known:
    """What was chosen for a graph.

    Attributes:
        best: the name of what does each call, by the call's.
        milliseconds: of all calls together.
    """

    best: Mapping[str, str]
    milliseconds: float


def memo_key(tuner: Tuner, graph: Graph, found: Sequence[Offer]) -> str:
    """The address of the choices for a graph: it holds all that they depend on."""
    backends = {entry.backend.name: entry.backend for offer in found for entry in offer.generated}
    facts = {"settings": tuner.settings.fingerprint(), "sizes": repr(sorted(graph.symbol_hints.items()))}
    for offer in found:
        generated = [entry.name for entry in offer.generated]
        others = [
            f"{other.name} {other.taken.nodes} {sorted((text, s.key) for text, s in other.sources.items())}"
            for other in offer.alternatives
        ]
        facts[offer.call.name] = "; ".join([*generated, *others])
    first = next(iter(found))
    everyone = {b.name: b for b in tuner.backends(first.device.partition(":")[0])} | backends
    nameless = replace(graph, name="graph")
    return tuner.key(f"choices {ir_digest(nameless)}", everyone.values(), first.device, facts)


def recalled(tuner: Tuner, key: str, decisions: list[Decision]) -> Known | None:
    """What was chosen, with the decisions of that time; None where nothing is known."""
    value = tuner.timings.noted(key)
    try:
        found, milliseconds = value["choices"], float(value["milliseconds"])  # type: ignore[index]
        rows = [(str(call), str(best), str(why)) for call, best, why in found]
    except (TypeError, ValueError, KeyError):
        return None
    decisions += [Decision("choice", call, best, why) for call, best, why in rows]
    return Known({call: best for call, best, _ in rows}, milliseconds)


def remember_choices(tuner: Tuner, key: str, decisions: Sequence[Decision], milliseconds: float) -> None:
    """Keep what was chosen."""
    rows = [[d.first, d.second, d.reason] for d in decisions if d.kind == "choice"]
    tuner.timings.note(key, {"choices": rows, "milliseconds": milliseconds})
