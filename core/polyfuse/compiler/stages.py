"""The stages of the compiler, in order. Read this first.

    capture        Dynamo's graph becomes an `AtenGraph` (`frontend.capture`)
    rewrite        on that graph: decompositions, canonical forms, plugins' patterns (`frontend.rewrites`)
    lower, claim   operators become loops and calls, and each loop gets a backend; operators whose loops every
                   backend refuses stay calls in eager mode
    autotune       which GEMMs and other calls backends generate, and which libraries compute
    fuse           nodes become ordered launches and calls: a `Schedule`
    autotune       fused kernels against their halves, and configurations of kernels
    generate       backends write the source of each kernel, and builds start in the background
    plan memory    a `Program`: buffers, launches and calls, printed as Python (and as a native host program)
    build          compilers run in the background; the first call of a kernel waits for its own
    load           the text of the program becomes the callable

Capture and rewriting run in `compile.py`, because AOTAutograd calls the compiler and not the other way round;
`compile_whole` and `compile_graph` are the others. A stage takes what the one before it returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from polyfuse.autotune.gemm_choice import GemmSelection, choose_gemms
from polyfuse.autotune.kernels import time_fusions
from polyfuse.base.errors import WrongCandidateError
from polyfuse.base.log import get_logger, warn_once
from polyfuse.base.text import PassTexts
from polyfuse.checking.calls import called_from
from polyfuse.compiler.built import Built, BuiltGraph
from polyfuse.compiler.claims import Lowered, lower_and_claim
from polyfuse.compiler.kernels import (
    Emitted,
    emit_kernels,
    pending_kernels,
    submit,
    tune_kernels,
)
from polyfuse.compiler.layers import Expansion, Layers, program_in_loop, shortened, with_periods
from polyfuse.compiler.native_host import native_host
from polyfuse.compiler.ranks import agreed, scheduled_rows
from polyfuse.compiler.reports import progress
from polyfuse.compiler.reports.clock import Clock
from polyfuse.compiler.reports.dump import Dump
from polyfuse.compiler.reports.logs import publish
from polyfuse.compiler.reports.rebuilt import TABLE, table_text
from polyfuse.compiler.reports.report import GraphReport
from polyfuse.compiler.reports.summary import append_tables, count_operators, graph_report, schedule_text
from polyfuse.compiler.reports.watch import compiling, entries_for, note_built
from polyfuse.compiler.session import CompileSession
from polyfuse.compiler.sizes.choosing import chosen_by_size
from polyfuse.compiler.sizes.classes import ClassKey
from polyfuse.compiler.sizes.graphs import SizedGraph
from polyfuse.compiler.subgraphs import compile_subgraphs
from polyfuse.frontend.graph import AtenGraph, graph_text
from polyfuse.frontend.periods import NotRepeated
from polyfuse.ir.graph import Graph
from polyfuse.ir.kernel import Alias, Kernel
from polyfuse.ir.text.print import text
from polyfuse.ir.verifier.verify import verify_graph, verify_kernel
from polyfuse.program import Program, make_program, python_text
from polyfuse.runtime.frozen import FROZEN, ONCE, PackedInputs
from polyfuse.runtime.module import CompiledModule, load
from polyfuse.runtime.native_program import HostStatus
from polyfuse.runtime.profile import meter_calls
from polyfuse.runtime.ranks.agreement import Agreement, compiling_for_others, tell_failure
from polyfuse.schedule import Claims, Decision, Launch, Schedule
from polyfuse.schedule.draw import dot
from polyfuse.schedule.frozen_calls import as_inputs, together
from polyfuse.schedule.kernels.aliasing import without_refused
from polyfuse.schedule.schedule import schedule_graph
from polyfuse.workers import BuildFuture

_log = get_logger("compiler")

Recorder: TypeAlias = Callable[[AtenGraph, BuiltGraph], object]
"""From a graph and what became of it to what the graph cache stores, or the reason why it does not."""


def compile_aten(
    aten: AtenGraph,
    session: CompileSession,
    agreement: Agreement | None = None,
    record: Recorder | None = None,
) -> Callable[[list[Any]], Any]:
    """Compile one ATen graph to a boxed callable.

    Where a stage fails and `strict` is off, the graph runs in eager mode, with one warning.

    Args:
        agreement: the check with other processes before it runs for the first time.
        record: what the graph cache stores of it and of the functions it calls, or why it does not.
    """
    try:
        with (
            compiling_for_others(False),
            compiling(aten),
            progress.compiling(session.settings, lambda: f"graph {aten.name}"),
        ):
            built = compile_whole(aten, session, True, record)
        built.module.agreement = agreement
        return built.module
    except Exception as error:
        if session.settings.strict or isinstance(error, WrongCandidateError):
            tell_failure(error)
            raise
        reason = f"{type(error).__name__}: {error}"
        warn_once(
            "compiler",
            f"graph {aten.name} runs in eager mode: {reason}; set POLYFUSE_STRICT=1 for the traceback",
            key=reason,
        )
        publish(GraphReport(aten.name, aten.kind, count_operators(aten), eager=reason))
        _log.debug("compilation of %s failed", aten.name, exc_info=True)
        return agreed(_eager(aten), aten, agreement)


def compile_whole(
    aten: AtenGraph, session: CompileSession, any_size: bool = False, record: Recorder | None = None
) -> BuiltGraph:
    """The stages of a captured and rewritten graph; raises what a stage raises.

    Args:
        any_size: whether the module chooses among programs for classes of sizes (`compiler.sizes`).
        record: what the graph cache stores of it, or why it does not; also of functions that it calls.
    """
    clock = Clock()
    dump = Dump.open(session.settings, aten.name)
    dump.write("aten", lambda: graph_text(aten))
    dump.write_passes("rewrites", aten.passes)
    dump.write("rewrites", lambda: "".join(f"{name} {count}\n" for name, count in aten.rewrites))
    subgraphs = compile_subgraphs(aten, session, partial(_compile_called, record=record))
    for short in shortened(aten, session.settings, any_size):
        try:
            lowered = lower_and_claim(aten, session, subgraphs, clock, short)
            periods = partial(with_periods, short, aten)
            built = compile_graph(lowered.claims, session, dump, clock, periods=periods)
            return _reported(aten, session, clock, record, lowered, built)
        except NotRepeated as error:
            _log.info("graph %s is not compiled from a few layers: %s", aten.name, error)
        except Exception:
            if session.settings.strict:
                raise
            _log.info("graph %s is not compiled from a few layers", aten.name, exc_info=True)
    lowered = lower_and_claim(aten, session, subgraphs, clock)
    sized = SizedGraph.of(lowered.claims, session) if any_size else None
    if sized is None:
        built, ahead = compile_graph(lowered.claims, session, dump, clock, given=aten.given), {}
    else:
        seen = sized.classes.noted
        built = compile_graph(sized.first(), session, dump, clock, seen)
        ahead = _ahead(sized, session, seen)
        compiled = partial(compile_sizes, sized, session=session, seen=seen)
        eager = None if session.settings.strict else _eager(aten)
        programs = chosen_by_size(sized.classes, built.module, compiled, eager, aten.name, seen)
        for key, (sizes, item) in ahead.items():
            programs.add(key, sizes, item.module)
        built.module.sized = programs
    return _reported(aten, session, clock, record, lowered, built, sized, ahead)


def _reported(
    aten: AtenGraph,
    session: CompileSession,
    clock: Clock,
    record: Recorder | None,
    lowered: Lowered,
    built: Built,
    sized: SizedGraph | None = None,
    ahead: Mapping[ClassKey, tuple[tuple[int, ...], Built]] = MappingProxyType({}),
) -> BuiltGraph:
    """What was built of a graph, with its report published."""
    report = graph_report(aten, lowered.report, built, clock)
    called = [Decision("library", item.op, item.node, item.reason) for item in lowered.report.preferred]
    noted = (*(Decision(n.kind, n.first, n.second, n.reason) for n in aten.notes), *called)
    report = replace(report, decisions=(*noted, *report.decisions))
    publish(report)
    if session.settings.metric_tables:
        append_tables(Path(session.settings.metric_tables).expanduser(), report)
    whole = BuiltGraph(**vars(built), report=report, sized=sized, ahead=dict(ahead))
    note_built(aten, whole)
    whole.module.collectives = scheduled_rows(whole.layers)
    if record is not None:
        whole.module.cache_record = record(aten, whole)
    return whole


def _compile_called(aten: AtenGraph, session: CompileSession, record: Recorder | None) -> CompiledModule:
    """A function that an operator of a graph calls."""
    return compile_whole(aten, session, record=record).module


def compile_graph(
    claims: Claims,
    session: CompileSession,
    dump: Dump,
    clock: Clock,
    seen: dict[str, int] | None = None,
    periods: Callable[[Schedule], Expansion] | None = None,
    given: int | None = None,
) -> Built:
    """The stages after claims: loops that backends generate, and calls, become a module.

    Args:
        seen: where the module leaves the values of those symbols that data decide.
        periods: what puts what lowering passed over into the schedule.
        given: how many inputs calls pass, where the caller computes others from parameters.
    """
    dump.write("graph.ir", lambda: text(claims.graph))
    _verify_graph(claims.graph, session.settings.verify)
    with clock.stage("autotune"):
        chosen = choose_gemms(claims.graph, claims.backends, session.tuner)
    texts = PassTexts(dump.wanted)
    with clock.stage("fuse"):
        schedule, expansion = _fused(chosen, session, texts, periods)
    with clock.stage("autotune"):
        schedule = _tuned(schedule, claims, chosen, session)
    layers = Layers(schedule, expansion)
    _dump_schedule(dump, layers, texts)
    _verify_kernels(schedule, session.settings.verify)
    with clock.stage("generate"):
        code = _generated(layers, session, given)
    _dump_kernels(dump, code)
    layers = layers.planned(code.planned, code.separate, code.refused)
    with clock.stage("plan"):
        program, whole = _planned(layers, code, session, seen)
        host = python_text(program, harness=session.settings.benchmark_harness)
    return _loaded(program, whole, host, layers.as_run(program), code, session, dump, clock, seen)


def _fused(
    chosen: GemmSelection,
    session: CompileSession,
    texts: PassTexts,
    periods: Callable[[Schedule], Expansion] | None,
) -> tuple[Schedule, Expansion | None]:
    """Launches and calls in order, and what puts in the layers that lowering passed over."""
    schedule = schedule_graph(
        chosen.graph,
        session.settings,
        session.backends,
        chosen.backends,
        epilogue_reductions=chosen.reductions,
        rules=session.extensions.fusion_rules,
        texts=texts,
    )
    schedule = chosen.with_choices(schedule)
    if periods is None:
        return schedule, None
    expansion = periods(schedule)
    if session.settings.verify:
        verify_graph(expansion.whole.graph)
    return schedule, expansion


def _tuned(schedule: Schedule, claims: Claims, chosen: GemmSelection, session: CompileSession) -> Schedule:
    """The schedule with what autotuning chose, and the decisions of all stages so far."""
    if session.settings.benchmark_fusion:
        schedule = time_fusions(session.tuner, chosen, schedule)
    schedule = tune_kernels(schedule, session, chosen.milliseconds)
    return replace(schedule, decisions=(*claims.decisions, *chosen.decisions, *schedule.decisions))


@dataclass(frozen=True)
class _Code:
    """The sources of a schedule's kernels, whose builds have started.

    Attributes:
        emitted: each distinct kernel's source, by the backend that it was scheduled for and the kernel.
        futures: the builds, by backend.
        refused: by the same keys as `emitted`, which aliases a source does not bear.
        planned: the schedule without these aliases.
        separate: what is not done in place because of them.
        packed: what computes the inputs that the caller does not pass; None: it passes all.
    """

    emitted: dict[tuple[str, Kernel], Emitted]
    futures: dict[str, BuildFuture]
    refused: Mapping[tuple[str, Kernel], Sequence[Alias]]
    planned: Schedule
    separate: tuple[Decision, ...]
    packed: PackedInputs | None


def _generated(layers: Layers, session: CompileSession, given: int | None) -> _Code:
    schedule = layers.few
    emitted = emit_kernels(schedule, session)
    futures = submit(emitted, session)
    progress.watch_builds(futures.values())
    refused = {key: item.source.refused_aliases for key, item in emitted.items()}
    packed = None
    if given is not None:
        schedule, packed = as_inputs(schedule, given)
    # what looks at a parameter's numbers stays in its layer: the loop hands each layer its own
    gathered = ONCE if layers.expansion is None else (FROZEN,)
    planned, separate = without_refused(together(schedule, gathered), refused)
    return _Code(emitted, futures, refused, planned, separate, packed)


def _planned(
    layers: Layers, code: _Code, session: CompileSession, seen: dict[str, int] | None
) -> tuple[Program, Callable[[], Program]]:
    """The program that runs, where possible with equal layers in a loop, and what makes that of all steps."""
    # a library called otherwise may round otherwise
    matmuls = session.settings.numerics == "fast"
    joining = {
        name: item.backend.joins_matmuls if matmuls else frozenset()
        for (name, _), item in code.emitted.items()
        if item.backend.joins_launches
    }
    whole = cache(lambda: make_program(layers.whole, session.settings, joining, tuple(seen or ())))
    looped = None if seen else program_in_loop(layers, session.settings, joining)
    return looped or whole(), whole


def _loaded(
    program: Program,
    whole: Callable[[], Program],
    host: str,
    layers: Layers,
    code: _Code,
    session: CompileSession,
    dump: Dump,
    clock: Clock,
    seen: dict[str, int] | None,
) -> Built:
    """The program's text as a module; its native form, if wanted, is built beside the kernels."""
    settings = session.settings
    dump.write("program.py", lambda: host)
    if settings.benchmark_harness:
        dump.write(TABLE, lambda: table_text(program, code.emitted, settings))
    kernels = pending_kernels(program, code.planned, code.emitted, code.futures, session)
    status = HostStatus() if settings.native_host else None
    native = native_host(program, kernels, session, status) if status is not None else None
    if native is not None and native.source is not None:
        dump.write(f"host.{native.source.language.split()[0]}", native.source.rendered)
    with clock.stage("load"):
        graph = layers.few.graph
        objects = session.checked_calls(graph.objects, called_from(graph.nodes, graph.objects))
        module = load(host, entries_for(kernels), objects, filename=dump.path("program.py"))
        module.native, module.packed_inputs = native, code.packed
        if seen:
            module.namespace["SEEN"] = seen
        if settings.profile:
            meter_calls(module, (program.device or "").partition(":")[0])
    notes = {key: item.source.note for key, item in code.emitted.items()}
    providers = {key: item.provider for key, item in code.emitted.items()}
    return Built(module, layers, whole, notes, kernels, status, providers)


def _dump_schedule(dump: Dump, layers: Layers, texts: PassTexts) -> None:
    dump.write_passes("schedule", texts.made)
    dump.write("schedule", lambda: schedule_text(layers.whole))
    dump.write("schedule.dot", lambda: dot(layers.whole))


def _dump_kernels(dump: Dump, code: _Code) -> None:
    for i, ((_, kernel), item) in enumerate(code.emitted.items()):
        dump.write(f"kernel{i}.{item.source.language.split()[-1]}", item.source.rendered)
        dump.write(f"kernel{i}.ir", partial(text, kernel))


def compile_sizes(
    sized: SizedGraph, key: ClassKey, sizes: Sequence[Any], session: CompileSession, seen: dict[str, int]
) -> CompiledModule:
    """The program of a graph for another class of its sizes, made for some of them."""
    return _built_for(sized, key, sizes, session, seen).module


def _built_for(
    sized: SizedGraph, key: ClassKey, sizes: Sequence[Any], session: CompileSession, seen: dict[str, int]
) -> Built:
    claims = sized.of_class(key, sizes)
    _log.info("graph %s is compiled for sizes %s", claims.graph.name, sizes)
    dump = Dump.open(session.settings, f"{claims.graph.name}_sizes_{'_'.join(map(str, sizes))}")
    return compile_graph(claims, session, dump, Clock(), seen)


def _ahead(
    sized: SizedGraph, session: CompileSession, seen: dict[str, int]
) -> dict[ClassKey, tuple[tuple[int, ...], Built]]:
    """What is built for the classes of the option `sizes`, beside that of the sizes that were met."""
    wanted = sized.classes.ahead(session.settings.sizes)
    del wanted[sized.classes.key(sized.classes.met)]
    return {key: (sizes, _built_for(sized, key, sizes, session, seen)) for key, sizes in wanted.items()}


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
