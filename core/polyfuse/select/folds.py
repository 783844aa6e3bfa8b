"""Reductions that begin in the kernels of products: what their backends say of the whole kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.graph import Graph
from polyfuse.plugin import Backend
from polyfuse.schedule import Decision, Launch, Schedule
from polyfuse.schedule.reductions.gemm_reductions import is_group_store, reduction_of
from polyfuse.schedule.schedule import schedule_graph
from polyfuse.select.choose import assign
from polyfuse.select.expand import Taken
from polyfuse.select.tuner import Tuner

__all__ = ["accepted_folds", "refused_folds"]


def refused_folds(tuner: Tuner, schedule: Schedule, decisions: list[Decision]) -> Mapping[str, str]:
    """The reductions begun in kernels that their backends do not generate as a whole, with the reasons, which
    become decisions too.
    """
    found: dict[str, str] = {}
    for step in schedule.steps:
        names = [reduction_of(n) for n in step.nodes if is_group_store(n)] if isinstance(step, Launch) else []
        if not isinstance(step, Launch) or not names:
            continue
        try:
            tuner.backend(step.backend).configs(step.kernel)
        except UnsupportedError as error:
            found |= dict.fromkeys(names, str(error))
            decisions += [Decision("declined", name, step.backend, str(error)) for name in names]
    return found


def accepted_folds(
    tuner: Tuner,
    graph: Graph,
    claimed: Mapping[str, Backend],
    winners: Mapping[str, Taken],
    decisions: list[Decision],
) -> Mapping[str, Taken]:
    """`winners` without the reductions that their backends do not generate with the product after all."""
    chosen = assign(graph, claimed, winners)
    if not chosen.folded:
        return winners
    schedule = schedule_graph(
        chosen.graph, tuner.settings, tuner.backends, chosen.backends, epilogue_reductions=chosen.folded
    )
    whole = refused_folds(tuner, schedule, decisions)
    return {
        call: replace(item, folds=() if whole.keys() & set(item.folds) else item.folds)
        for call, item in winners.items()
    }
