"""From an ATen graph to loops that backends claim; what none of them generates is left to eager operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyfuse.base.log import warn_once
from polyfuse.compiler.reports.clock import Clock
from polyfuse.compiler.session import CompileSession
from polyfuse.frontend.graph import AtenGraph
from polyfuse.frontend.periods import NotRepeated
from polyfuse.lowering import LoweringReport, lower_graph
from polyfuse.lowering.shortened import Shortening
from polyfuse.runtime.subgraphs import Subgraph
from polyfuse.schedule.claims import Claims, Refusal, UnclaimedError, claim_nodes


@dataclass(frozen=True)
class Lowered:
    """A lowered graph: who generates its loops, and what became of each operator."""

    claims: Claims
    report: LoweringReport


def lower_and_claim(
    aten: AtenGraph,
    session: CompileSession,
    subgraphs: Mapping[str, Subgraph],
    clock: Clock,
    short: Shortening | None = None,
) -> Lowered:
    """Lower a graph and ask who generates its loops.

    The operators of loops that every backend refuses are lowered once more, as calls in eager mode. What
    reads their results has other loops then, which are claimed like the first ones.

    Args:
        subgraphs: compiled functions that operators call, by the names of their modules.
        short: the periods of the graph that are passed over.

    Raises:
        NotRepeated: with `short`, some loops are refused.
        UnclaimedError: some loops are refused, with `strict` or where no backend serves a device.
    """
    eager: dict[str, str] = {}
    for _ in aten.module.graph.nodes:  # each round leaves at least one more of them to eager mode
        report = LoweringReport()
        with clock.stage("lower"):
            graph = lower_graph(
                *(aten, session.settings, report, session.extensions, session.target_info, eager, subgraphs),
                short=short,
            )
        with clock.stage("claim"):
            claims = claim_nodes(graph, session.backends, session.settings)
        refused = _traced_nodes(claims)
        if not claims.refused:
            return Lowered(claims, report)
        if short is not None:
            raise NotRepeated("no backend generates code for some loops")
        if session.settings.strict or refused.keys() <= eager.keys():
            break
        _warn(claims.refused)
        eager.update(refused)
    raise UnclaimedError(claims.refused)


def _traced_nodes(claims: Claims) -> dict[str, str]:
    """The traced nodes that loops without a backend come from, with the reasons; none where no backend serves
    a device at all.
    """
    if not any(refusal.asked for refusal in claims.refused):
        return {}
    return {
        origin.fx: f"no backend generates code for it ({refusal.reason})"
        for refusal in claims.refused
        for origin in refusal.node.origins
    }


def _warn(refused: tuple[Refusal, ...]) -> None:
    for item in refused:
        warn_once(
            "compiler",
            f"{item.text} runs in eager mode: no backend generates code for it ({item.reason})",
            key=f"unclaimed {item.text.partition(' (')[0]} {item.reason}",
        )
