"""What the compiler did with each graph: counts for people, decisions for tools."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polyfuse.compiler.reports.watch import note_report

if TYPE_CHECKING:
    from polyfuse.runtime.graphs.status import GraphStatus
    from polyfuse.runtime.native_program import HostStatus
    from polyfuse.runtime.sized import SizeStatus
    from polyfuse.schedule import Decision

MAX_REPORTS = 256


@dataclass
class Provider:
    """Who provides a kernel, updated: a build, launch or check that fails makes it another backend.

    Attributes:
        backend: its name.
        reason: why it is not the one that was scheduled; empty if it is.
    """

    backend: str
    reason: str = ""


@dataclass(frozen=True)
class LaunchReport:
    """One launch of a generated kernel.

    Attributes:
        kernel: its name in the IR, which other kernels of the graph may have too.
        provider: who generated it.
        nodes: the nodes of the representation that it computes.
        ops: the operators that these come from, each once.
        sources: the lines of the model that these come from, each once.
        nbytes: bytes that it reads and writes.
        note: what its backend says of how it is computed; often nothing.
        name: of the kernel in the host program, in reports and in profiles; its number is that of its dumps.
    """

    kernel: str
    provider: Provider
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    sources: tuple[str, ...]
    nbytes: int
    note: str = ""
    name: str = ""

    @property
    def backend(self) -> str:
        """The backend whose kernel runs; before the first call, the one that is building it."""
        return self.provider.backend


@dataclass(frozen=True)
class GraphReport:
    """One compiled graph.

    Attributes:
        name, kind: of the graph.
        aten_ops: operators in the traced graph.
        kernels: launches of generated kernels.
        distinct_kernels: kernels built for them.
        extern_calls: library calls, fallbacks included.
        fallbacks: operators run in eager mode for want of a lowering, as (operator, reason).
        bytes_before: bytes read and written if every operator ran alone.
        bytes_after: bytes read and written by the launches and calls.
        compile_seconds: wall time of the stages, builds not included (they go on in the background).
        stage_seconds: the same by stage.
        decisions: of the scheduler.
        launches: of generated kernels, in order.
        calls: operators called from the library, in order. First, after `frozen.`, those whose results are
            inputs of the program, which are not in `extern_calls`.
        rewrites: rewrites of the captured graph, as (pass, how many).
        eager: why the whole graph runs in eager mode; empty if it does not.
        cached: whether the graph was read from the graph cache.
        recording: what becomes of recording its work, updated; None where that was not asked for.
        host: what becomes of its native host program; None where that was not asked for.
        sizes: programs for classes of its sizes, updated; None where one program serves all.
    """

    name: str
    kind: str
    aten_ops: int
    kernels: int = 0
    distinct_kernels: int = 0
    extern_calls: int = 0
    fallbacks: tuple[tuple[str, str], ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    compile_seconds: float = 0.0
    stage_seconds: tuple[tuple[str, float], ...] = ()
    decisions: tuple[Decision, ...] = ()
    launches: tuple[LaunchReport, ...] = ()
    calls: tuple[str, ...] = ()
    rewrites: tuple[tuple[str, int], ...] = ()
    eager: str = ""
    cached: bool = False
    recording: GraphStatus | None = None
    host: HostStatus | None = None
    sizes: SizeStatus | None = None

    def note_provider(self, kernel: str, backend: str, reason: str) -> None:
        """Another backend provides a kernel from now on."""
        for launch in self.launches:
            if launch.kernel == kernel:
                launch.provider.backend, launch.provider.reason = backend, reason


_LOCK = threading.Lock()
_REPORTS: deque[GraphReport] = deque(maxlen=MAX_REPORTS)


def record(report: GraphReport) -> None:
    """Remember a report."""
    with _LOCK:
        _REPORTS.append(report)
    note_report(report)


def last_reports() -> list[GraphReport]:
    """Reports of the graphs compiled last in this process, oldest first."""
    with _LOCK:
        return list(_REPORTS)


def reset_reports() -> None:
    """Forget all reports."""
    with _LOCK:
        _REPORTS.clear()
