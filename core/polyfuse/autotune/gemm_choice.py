"""The choice of an implementation for each call of a graph that has several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polyfuse.autotune.alternatives import GemmSelection, Replacement, apply_replacements
from polyfuse.autotune.gemm_candidates import TunableCall, offers
from polyfuse.autotune.gemm_search import LIBRARY, GemmTask, implementations_of, replacements_of
from polyfuse.autotune.kernels import times_text
from polyfuse.autotune.tuner import Tuner
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import warn_once
from polyfuse.ir.digest import ir_digest
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import TemplateCall
from polyfuse.schedule import Decision, Launch, Schedule
from polyfuse.schedule.reductions.gemm_reductions import is_fold, reduction_of
from polyfuse.schedule.schedule import schedule_graph

__all__ = ["choose_gemms"]


def refused_reductions(tuner: Tuner, schedule: Schedule, decisions: list[Decision]) -> Mapping[str, str]:
    """The reductions begun in kernels that their backends do not generate as a whole, with the reasons, which
    become decisions too.
    """
    found: dict[str, str] = {}
    for step in schedule.steps:
        names = [reduction_of(n) for n in step.nodes if is_fold(n)] if isinstance(step, Launch) else []
        if not isinstance(step, Launch) or not names:
            continue
        try:
            tuner.backend(step.backend).configs(step.kernel)
        except UnsupportedError as error:
            found |= dict.fromkeys(names, str(error))
            decisions += [Decision("declined", name, step.backend, str(error)) for name in names]
    return found


def accepted_reductions(
    tuner: Tuner, graph: Graph, winners: Mapping[str, Replacement], decisions: list[Decision]
) -> Mapping[str, Replacement]:
    """`winners` without the reductions that their backends do not generate with the product after all."""
    chosen = apply_replacements(graph, winners)
    if not chosen.folded:
        return winners
    schedule = schedule_graph(
        chosen.graph, tuner.settings, tuner.backends, chosen.backends, folded=chosen.folded
    )
    whole = refused_reductions(tuner, schedule, decisions)
    return {
        call: replace(item, folds=() if whole.keys() & set(item.folds) else item.folds)
        for call, item in winners.items()
    }


def choose_gemms(graph: Graph, tuner: Tuner) -> GemmSelection:
    """Decide for every call whether a library does it, a backend generates it, or a plugin has something
    else for it.
    """
    wanted = tuner.settings.gemm
    as_eager = wanted == "known" and tuner.settings.numerics == "eager"  # another library rounds otherwise
    if wanted == "library" or as_eager:
        return GemmSelection(graph, {}, ())
    decisions: list[Decision] = []
    if wanted == "known":
        return apply_replacements(graph, _known(tuner, graph, decisions), decisions)
    if wanted == "generated":
        found = offers(graph, tuner.backends, decisions, racing=False)
        first = {offer.call.name: offer.generated[0].taken for offer in found}
        winners = accepted_reductions(tuner, graph, first, decisions)
    else:
        choices, kept = tuner.choices(graph, decisions), tuner.kept(graph)
        found = offers(graph, tuner.backends, decisions, choices, racing=True, kept=kept)
        winners, milliseconds = _search_or_library(tuner, graph, found, decisions)
        return replace(apply_replacements(graph, winners, decisions), milliseconds=milliseconds)
    return apply_replacements(graph, winners, decisions)


def _known(tuner: Tuner, graph: Graph, decisions: list[Decision]) -> Mapping[str, Replacement]:
    """The calls that plugins know to be faster on this machine in another way; nothing is timed."""
    ask = tuner.choices(graph, decisions, known=True)
    taken: dict[str, Replacement] = {}
    for node in graph.nodes:
        if not isinstance(node, TemplateCall):
            continue
        device = next((graph.buffers[name].device for name in node.writes()), "cpu")
        found = ask(node, device.partition(":")[0])
        if found:
            taken[node.name] = found[0].taken
            decisions.append(Decision("choice", node.name, found[0].name, "known to be faster here"))
    return taken


def _search_or_library(
    tuner: Tuner, graph: Graph, found: Sequence[TunableCall], decisions: list[Decision]
) -> tuple[Mapping[str, Replacement], float]:
    """What wins, and the milliseconds of all; nothing, with one warning, where racing itself fails: then
    libraries do all calls.
    """
    try:
        return search_gemms(tuner, graph, found, decisions)
    except Exception as error:
        if tuner.settings.strict:
            raise
        reason = f"{type(error).__name__}: {error}"
        warn_once("select", f"calls are left to libraries, because racing failed ({reason})", key=reason)
        return {}, 0.0


@dataclass(frozen=True)
class Known:
    """What was chosen for a graph.

    Attributes:
        best: the name of what does each call, by the call's.
        milliseconds: of all calls together.
    """

    best: Mapping[str, str]
    milliseconds: float


def memo_key(tuner: Tuner, graph: Graph, found: Sequence[TunableCall]) -> str:
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


def search_gemms(
    tuner: Tuner, graph: Graph, found: Sequence[TunableCall], decisions: list[Decision]
) -> tuple[Mapping[str, Replacement], float]:
    """The calls of `graph` that something does faster than the library, with what does, and the milliseconds
    of all calls.
    """
    if not found:
        return {}, 0.0
    key = memo_key(tuner, graph, found)
    known = recalled(tuner, key, decisions)
    if known is None:
        known, settled = _searched(tuner, graph, found, decisions)
        if settled:
            remember_choices(tuner, key, decisions, known.milliseconds)
    names = known.best
    winners: dict[str, Replacement] = {}
    for offer in found:
        winner = _winner(tuner, offer, *names.get(offer.call.name, LIBRARY).partition(" ")[::2])
        if winner is not None:
            winners[offer.call.name] = winner
    return winners, known.milliseconds


def _searched(
    tuner: Tuner, graph: Graph, found: Sequence[TunableCall], decisions: list[Decision]
) -> tuple[Known, bool]:
    """What wins each race, and whether all of them could be decided."""
    tasks = {offer.call.name: task for offer, task in _tasks(tuner, graph, found, decisions)}
    answers = tuner.settle(tasks.values())
    names: dict[str, str] = {}
    total = 0.0
    for call, task in tasks.items():
        measured = answers[task.key]
        why = f"{measured.about}: {times_text(measured)}" if measured.milliseconds else "nothing was timed"
        if measured.best is None and tuner.exhausted:
            why = "the time for races is used up (`max_autotune_seconds`)"
        names[call] = measured.best or LIBRARY
        total += measured.milliseconds.get(names[call], 0.0)
        decisions.append(Decision("choice", call, names[call], why))
    return Known(names, total), all(answers[task.key].best is not None for task in tasks.values())


def _winner(tuner: Tuner, offer: TunableCall, name: str, config: str) -> Replacement | None:
    """What goes by a name in the race for a call; None: the library."""
    for alternative in offer.alternatives:
        if alternative.name == name:
            if alternative.backend is None:
                return alternative.taken
            source = alternative.sources.get(config)
            if source is None:
                return None
            built = tuner.built(alternative.backend, source)
            return replace(alternative.taken, objects={alternative.key: built})
    return next((entry.taken for entry in offer.generated if entry.name == name), None)


def _tasks(
    tuner: Tuner, graph: Graph, found: Sequence[TunableCall], decisions: list[Decision]
) -> list[tuple[TunableCall, GemmTask]]:
    """A task for each product: the schedules with the library and with each backend say what they run."""
    library = schedule_graph(graph, tuner.settings, tuner.backends)
    others: dict[str, Schedule] = {}
    whole: set[str] = set()
    offered = {offer.call.name: replacements_of(offer) for offer in found}
    for name in sorted({name for names in offered.values() for name in names}):
        taken = {call: names[name] for call, names in offered.items() if name in names}
        chosen = apply_replacements(graph, taken)
        others[name] = schedule_graph(
            chosen.graph, tuner.settings, tuner.backends, chosen.backends, folded=chosen.folded
        )
        whole |= refused_reductions(tuner, others[name], decisions).keys()
    return [
        (offer, GemmTask(tuner, offer, implementations, graph.symbol_hints))
        for offer in found
        for implementations in (implementations_of(offer, offered, library, others, whole),)
    ]
