"""What Polyfuse says of the graphs that a call compiled, so that agreement is not an empty statement."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from torch._dynamo.utils import counters

INTERPRETER = "interpreter"


@dataclass(frozen=True)
class Compiled:
    """Counts over all graphs of one call and its backward.

    Attributes:
        graphs, breaks: compiled graphs, and points where Dynamo could not go on in one.
        kernels, calls: launches of generated kernels, and library calls, fallbacks included.
        fallbacks: operators left to eager for want of a lowering, with the reason.
        eager: why graphs, or kernels, were not compiled; empty if all were.
    """

    graphs: int
    breaks: int
    kernels: int
    calls: int
    fallbacks: tuple[str, ...]
    eager: tuple[str, ...]


@contextlib.contextmanager
def listen() -> Iterator[list[str]]:
    """Forget earlier graphs, and collect the warnings that the compiler gives from now on."""
    from polyfuse.base.log import reset_warned
    from polyfuse.compiler.reports.report import reset_reports

    reset_reports()
    reset_warned()
    counters.clear()
    heard: list[str] = []
    handler = _Collector(heard)
    logger = logging.getLogger("polyfuse")
    logger.addHandler(handler)
    propagated, logger.propagate = logger.propagate, False
    try:
        yield heard
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


class _Collector(logging.Handler):
    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


def compiled_graphs(heard: list[str]) -> Compiled:
    from polyfuse.compiler.reports.report import last_reports

    reports = last_reports()
    eager = [report.eager for report in reports if report.eager]
    eager += [
        f"{launch.kernel} is interpreted"
        for report in reports
        for launch in report.launches
        if launch.backend == INTERPRETER
    ]
    eager += [
        text for text in heard if "eager mode" in text or "falls back" in text or "next backend" in text
    ]
    fallbacks = (f"{name}: {reason}" for report in reports for name, reason in report.fallbacks)
    return Compiled(
        graphs=len(reports),
        breaks=sum(counters["graph_break"].values()),
        kernels=sum(report.kernels for report in reports),
        calls=sum(report.extern_calls for report in reports),
        fallbacks=tuple(dict.fromkeys(fallbacks)),
        eager=tuple(dict.fromkeys(eager)),
    )
