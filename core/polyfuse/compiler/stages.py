"""The stages of the compiler, in order. Read this first.

AtenGraph ──lower──▶ Graph ──schedule──▶ Schedule ──emit──▶ sources ──build (in the background)──▶ kernels
                                            └──plan──▶ Program ──print──▶ module text ──load──▶ callable
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from polyfuse.base.log import get_logger, warn_once
from polyfuse.compiler.graph_cache import record_of
from polyfuse.compiler.kernels import PendingKernel, emit_kernels, pending_kernels, submit, tune_kernels
from polyfuse.compiler.native import native_host
from polyfuse.compiler.reports.dump import Dump
from polyfuse.compiler.reports.report import GraphReport, LaunchReport, Provider, record
from polyfuse.compiler.session import CompileSession
from polyfuse.compiler.subgraphs import compile_subgraphs
from polyfuse.frontend.graph import AtenGraph
from polyfuse.frontend.printing import graph_text
from polyfuse.ir.graph import Graph
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.print import text
from polyfuse.ir.verifier.verify import verify_graph, verify_kernel
from polyfuse.lowering import LoweringReport, lower_graph
from polyfuse.program import Program, bytes_moved, plan, python_text, with_scratch
from polyfuse.program.traffic import step_bytes
from polyfuse.runtime.module import CompiledModule, load
from polyfuse.runtime.native_program import HostStatus
from polyfuse.schedule import NO_BACKEND, Call, Launch, Schedule, UnclaimedError, is_unasked
from polyfuse.schedule.draw import dot
from polyfuse.schedule.kernels.aliasing import without_refused
from polyfuse.schedule.schedule import schedule_graph
from polyfuse.select.decide import choose
from polyfuse.select.fusion_race import settle_fusions

__all__ = ["Built", "BuiltGraph", "Clock", "compile_aten", "compile_graph", "compile_whole"]

_log = get_logger("compiler")


def compile_aten(aten: AtenGraph, session: CompileSession) -> Callable[[list[Any]], Any]:
    """Compile one ATen graph to a boxed callable.

    Where a stage fails and `strict` is off, the graph runs in eager mode, with one warning.
    """
    try:
        return _kept(aten, session)
    except Exception as error:
        if session.settings.strict:
            raise
        reason = f"{type(error).__name__}: {error}"
        warn_once(
            "compiler",
            f"graph {aten.name} runs in eager mode: {reason}; set POLYFUSE_STRICT=1 for the traceback",
            key=reason,
        )
        record(GraphReport(aten.name, aten.kind, _operators(aten), eager=reason))
        _log.debug("compilation of %s failed", aten.name, exc_info=True)
        return _eager(aten)


@dataclass(frozen=True)
class Built:
    """What `compile_graph` made, with what came before it."""

    module: CompiledModule
    schedule: Schedule
    program: Program
    notes: Mapping[tuple[str, Kernel], str]
    kernels: Mapping[str, PendingKernel]
    host: HostStatus | None
    providers: Mapping[tuple[str, Kernel], Provider]


def _kept(aten: AtenGraph, session: CompileSession) -> CompiledModule:
    built = compile_whole(aten, session)
    if session.settings.graph_cache and any(
        is_unasked(item.emitted.backend, session.settings) for item in built.kernels.values()
    ):
        built.module.cache_record = "a kernel of it is interpreted, which each process is told"
    elif session.settings.graph_cache:
        built.module.cache_record = record_of(
            aten, built.module, built.kernels, built.schedule.graph.objects, built.report, session
        )
    return built.module


@dataclass(frozen=True)
class BuiltGraph(Built):
    """What `compile_whole` made, with what it reports."""

    report: GraphReport


def compile_whole(aten: AtenGraph, session: CompileSession) -> BuiltGraph:
    """All stages; raises what a stage raises."""
    settings = session.settings
    clock = Clock()
    dump = Dump.open(settings, aten.name)
    dump.write("aten", lambda: graph_text(aten))
    dump.write("rewrites", lambda: "".join(f"{name} {count}\n" for name, count in aten.rewrites))
    bodies = compile_subgraphs(aten, session, lambda *body: compile_whole(*body).module)
    eager: dict[str, str] = {}
    while True:
        lowering = LoweringReport()
        with clock.stage("lower"):
            graph = lower_graph(
                aten, settings, lowering, session.extensions, session.target_info, eager, bodies
            )
        try:
            built = compile_graph(graph, session, dump, clock)
            break
        except UnclaimedError as error:
            refused = _traced_nodes(error)
            if settings.strict or refused.keys() <= eager.keys():
                raise
            _warn_of_unclaimed(error)
            eager.update(refused)
    report = _report(aten, lowering, built, clock)
    record(report)
    return BuiltGraph(**vars(built), report=report)


def _traced_nodes(error: UnclaimedError) -> dict[str, str]:
    """The traced nodes that nodes without a backend come from, with the reasons; none where no backend serves
    the device at all.
    """
    if all(why == NO_BACKEND for _, why in error.nodes):
        return {}
    return {
        origin.fx: f"no backend generates code for it ({why})"
        for node, why in error.nodes
        for origin in node.origins
    }


def _warn_of_unclaimed(error: UnclaimedError) -> None:
    for (_, why), what in zip(error.nodes, error.texts, strict=True):
        warn_once(
            "compiler",
            f"{what} runs in eager mode: no backend generates code for it ({why})",
            key=f"unclaimed {what.partition(' (')[0]} {why}",
        )


def compile_graph(graph: Graph, session: CompileSession, dump: Dump, clock: Clock) -> Built:
    """The stages after lowering: a graph of the representation becomes a module."""
    settings = session.settings
    dump.write("graph.ir", lambda: text(graph))
    _verify_graph(graph, settings.verify)
    with clock.stage("select"):
        chosen = choose(graph, session.tuner)
    with clock.stage("schedule"):
        again = partial(
            schedule_graph,
            chosen.graph,
            settings,
            session.backends,
            chosen.backends,
            folded=chosen.folded,
        )
        schedule = again()
    if settings.benchmark_fusion:
        with clock.stage("fusion"):
            schedule, timed = settle_fusions(session.tuner, schedule, again)
            schedule = replace(schedule, decisions=(*schedule.decisions, *timed))
    schedule = replace(schedule, decisions=(*chosen.decisions, *schedule.decisions))
    with clock.stage("tune"):
        tuned = tune_kernels(schedule, session, chosen.milliseconds)
    schedule = replace(
        schedule, decisions=(*schedule.decisions, *(verdict.decision for verdict in tuned.values()))
    )
    session.observe(schedule.decisions)
    dump.write("schedule", lambda: _schedule_text(schedule))
    dump.write("schedule.dot", lambda: dot(schedule))
    _verify_kernels(schedule, settings.verify)
    with clock.stage("emit"):
        emitted = emit_kernels(schedule, session, tuned)
        futures = submit(emitted, session)
    refused = {key: item.source.refused_aliases for key, item in emitted.items()}
    schedule, apart = without_refused(schedule, refused)
    schedule = replace(schedule, decisions=(*schedule.decisions, *apart))
    session.observe(apart)
    for i, ((_, kernel), item) in enumerate(emitted.items()):
        dump.write(f"kernel{i}.{item.source.language.split()[-1]}", item.source.rendered)
        dump.write(f"kernel{i}.ir", partial(text, kernel))
    with clock.stage("plan"):
        scratch = {key: item.source.scratch for key, item in emitted.items()}
        program = plan(with_scratch(schedule, scratch), settings)
        host = python_text(program, harness=settings.benchmark_harness)
    dump.write("program.py", lambda: host)
    kernels = pending_kernels(program, schedule, emitted, futures, session)
    status = HostStatus() if settings.native_host else None
    native = native_host(program, kernels, session, status) if status is not None else None
    if native is not None and native.source is not None:
        dump.write(f"host.{native.source.language.split()[0]}", native.source.rendered)
    with clock.stage("load"):
        module = load(host, kernels, schedule.graph.objects, filename=dump.path("program.py"))
        module.native = native
    notes = {key: item.source.note for key, item in emitted.items()}
    providers = {key: item.provider for key, item in emitted.items()}
    return Built(module, schedule, program, notes, kernels, status, providers)


def _eager(aten: AtenGraph) -> Callable[[list[Any]], Any]:
    """The traced graph itself, operator by operator."""

    def run(args: list[Any]) -> Any:
        inputs = list(args)
        args.clear()
        return aten.module(*inputs)

    return run


def _verify_graph(graph: Graph, level: int) -> None:
    if level:
        verify_graph(graph)


def _verify_kernels(schedule: Schedule, level: int) -> None:
    if level:
        for step in schedule.steps:
            if isinstance(step, Launch):
                verify_kernel(step.kernel)


def _schedule_text(schedule: Schedule) -> str:
    lines = [f"{d.kind}: {d.first} {d.second}: {d.reason}" for d in schedule.decisions]
    for step in schedule.steps:
        if isinstance(step, Launch):
            lines.append(f"launch {step.kernel.name}({', '.join(map(str, step.operands))}) by {step.backend}")
            lines.append(text(step.kernel).rstrip())
        else:
            lines.append(f"call {step.node.op} -> {', '.join(step.writes)}")
    return "\n".join(lines)


def _operators(aten: AtenGraph) -> int:
    return sum(1 for n in aten.module.graph.nodes if n.op == "call_function")


def _report(aten: AtenGraph, lowering: LoweringReport, built: Built, clock: Clock) -> GraphReport:
    schedule = built.schedule
    before, after = bytes_moved(schedule)
    steps = (s for s in schedule.steps if isinstance(s, Launch))
    launches = tuple(_launch_report(s, schedule, built) for s in steps)
    calls = tuple(s.node.op for s in schedule.steps if isinstance(s, Call))
    return GraphReport(
        aten.name,
        aten.kind,
        _operators(aten),
        len(launches),
        len(built.program.kernels),
        len(calls),
        tuple((f.op, f.reason) for f in lowering.fallbacks),
        before,
        after,
        clock.total(),
        tuple(clock.seconds.items()),
        schedule.decisions,
        launches,
        calls,
        aten.rewrites,
        recording=built.module.graph_status,
        host=built.host,
    )


def _launch_report(launch: Launch, schedule: Schedule, built: Built) -> LaunchReport:
    key = launch.backend, launch.kernel
    origins = {o: None for node in launch.nodes for o in node.origins}
    return LaunchReport(
        launch.kernel.name,
        built.providers[key],
        tuple(node.name for node in launch.nodes),
        tuple(dict.fromkeys(o.op for o in origins)),
        tuple(dict.fromkeys(o.source for o in origins if o.source)),
        step_bytes(launch, schedule),
        built.notes.get(key, ""),
    )


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what happens inside to one stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def total(self) -> float:
        """Seconds of all stages."""
        return sum(self.seconds.values())
