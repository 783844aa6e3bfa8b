"""What `TORCH_LOGS` prints of a compiled graph: texts of stages and decisions, under torch's own names."""

from __future__ import annotations

from collections.abc import Iterator

from polyfuse.compiler.reports.report import GraphReport, record
from polyfuse.torch_compat.tracing.structured import is_logged, log_artifact

STAGES = {
    "aten": "post_grad_graphs",
    "graph.ir": "ir_pre_fusion",
    "schedule": "schedule",
    "program.py": "output_code",
}
"""The artifact to which the text of a stage belongs."""

_FUSION = frozenset({"fuse", "refuse", "split", "group", "local", "inplace", "overlap", "remove"})
"""Kinds of decisions that `fusion` prints."""


def artifact_of(stage: str) -> str:
    """The artifact of a stage's text, or nothing; sources of kernels and of host programs are output code."""
    name, _, kind = stage.partition(".")
    if kind and kind not in ("ir", "dot", "txt") and (name.startswith("kernel") or name == "host"):
        return "output_code"
    return STAGES.get(stage, "")


def texts_are_logged() -> bool:
    """Whether an artifact is asked for that only a compile has the text of."""
    return any(is_logged(artifact) for artifact in STAGES.values())


def publish(report: GraphReport) -> None:
    """Remember the report of a graph that was compiled or found, and print of it what is asked for."""
    record(report)
    for artifact, lines in (("fusion", _decisions), ("perf_hints", _hints)):
        if is_logged(artifact):
            found = "\n".join(f"  {line}" for line in lines(report))
            log_artifact(artifact, f"polyfuse {report.name}:\n{found or '  nothing'}")


def _decisions(report: GraphReport) -> Iterator[str]:
    for decision in report.decisions:
        if decision.kind in _FUSION:
            pair = " and ".join(filter(None, (decision.first, decision.second)))
            yield f"{decision.kind} {pair}: {decision.reason}"


def _hints(report: GraphReport) -> Iterator[str]:
    """What keeps a graph from being faster."""
    if report.eager:
        yield f"the whole graph runs in eager mode: {report.eager}"
    for operator, reason in report.fallbacks:
        yield f"{operator} runs in eager mode: {reason}"
    for launch in report.launches:
        if launch.provider.reason:
            yield f"kernel {launch.name} by {launch.backend}: {launch.provider.reason}"
    for decision in report.decisions:
        if decision.kind == "declined":
            yield f"{decision.first} by {decision.second or 'generated kernels'}: {decision.reason}"
