"""Watches what is compiled and run in this process, for a report."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from polyfuse.compiler.built import BuiltGraph
from polyfuse.compiler.reports.report import GraphReport
from polyfuse.compiler.reports.watch import watch
from polyfuse.frontend.graph import AtenGraph
from polyfuse.reporting.eager_memory import EagerInputs
from polyfuse.reporting.timing import ProgramTimer
from polyfuse.runtime.module import KernelEntry
from polyfuse.torch_compat.tracing.dynamo import compile_id
from polyfuse.torch_compat.tracing.frames import Break, Frame, break_after, compiled_frames, keep_frames

_MOST_FRAMES = 4096


@dataclass
class Capture:
    """One graph as Dynamo captured it.

    Attributes:
        compile_id: Dynamo's id of the compile.
        graph: the captured module.
        inputs: what it is called with.
        broken: the graph break that ends it, if one does.
        seconds: the time in the backend.
        stages: of that, in the stages of traced graphs.
    """

    compile_id: str
    graph: Any
    inputs: EagerInputs
    broken: Break | None
    seconds: float = 0.0
    stages: float = 0.0


@dataclass
class Compiled:
    """One traced graph.

    Attributes:
        report: what the compiler says of it.
        built: all that it made; None where the graph was read from the graph cache, or runs in eager mode.
        aten: what was compiled.
        timer: of its program.
        capture: what it comes from; None where that is not known.
        seconds: of its stages.
        late: whether it is a backward that was compiled when it first ran.
    """

    report: GraphReport
    built: BuiltGraph | None = None
    aten: AtenGraph | None = None
    timer: ProgramTimer | None = None
    capture: Capture | None = None
    seconds: float = 0.0
    late: bool = False


@dataclass
class Collector:
    """Keeps what it sees. It is a `polyfuse.compiler.reports.watch.Watcher`.

    Attributes:
        captures: what Dynamo captured, in order.
        graphs: what was compiled of these, in order.
        frames: what Dynamo says of each compile; filled in when watching ends.
    """

    captures: list[Capture] = field(default_factory=list)
    graphs: list[Compiled] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    measure: bool = True
    _timers: dict[int, ProgramTimer] = field(default_factory=dict)
    _here: threading.local = field(default_factory=threading.local)

    @contextmanager
    def watching(self) -> Iterator[Collector]:
        """Keep what happens inside."""
        keep_frames(_MOST_FRAMES)
        try:
            with watch(self):
                yield self
        finally:
            self.frames = compiled_frames()

    @contextmanager
    def captured(self, gm: Any, inputs: Sequence[Any]) -> Iterator[None]:
        """Dynamo captured a graph."""
        capture = Capture(compile_id(), gm, EagerInputs.of(inputs), break_after(gm))
        self.captures.append(capture)
        before = getattr(self._here, "capture", None)
        self._here.capture = capture
        began = time.perf_counter()
        try:
            yield
        finally:
            capture.seconds = time.perf_counter() - began
            self._here.capture = before

    @contextmanager
    def compiling(self, aten: AtenGraph) -> Iterator[None]:
        """The stages of one traced graph."""
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            capture: Capture | None = getattr(self._here, "capture", None)
            if capture is not None:
                capture.stages += seconds
            for compiled in reversed(self.graphs):
                if compiled.report.name == aten.name:
                    compiled.seconds, compiled.late = seconds, capture is None
                    break

    def entries(self, kernels: Mapping[str, KernelEntry]) -> Mapping[str, KernelEntry]:
        """The kernels of a program, measured."""
        if not self.measure:
            return kernels
        timer = self._timers[id(kernels)] = ProgramTimer()
        return timer.entries(kernels)

    def reported(self, report: object) -> None:
        """A graph was compiled, or read from the graph cache."""
        assert isinstance(report, GraphReport)
        capture = getattr(self._here, "capture", None)
        if capture is None:  # a backward that is compiled when it first runs
            same = (
                g.capture for g in reversed(self.graphs) if _number(g.report.name) == _number(report.name)
            )
            capture = next((c for c in same if c is not None), None)
        self.graphs.append(Compiled(report, capture=capture))

    def built(self, aten: AtenGraph, built: object) -> None:
        """A graph was compiled."""
        assert isinstance(built, BuiltGraph)
        compiled = next((g for g in reversed(self.graphs) if g.report is built.report), None)
        if compiled is None:
            return
        compiled.built, compiled.aten = built, aten
        timer = self._timers.pop(id(built.kernels), None)
        if timer is not None:
            compiled.timer = timer
            changed = [i.index for i in aten.inputs if i.donated or i.mutated]
            tensors = [i.index for i in aten.inputs if isinstance(i.value, torch.Tensor)]
            timer.install(built, built.program.device, changed if aten.kind != "backward" else tensors)


def _number(name: str) -> str:
    """What a graph's name has in common with that of its backward."""
    return name.partition("_")[2]
