"""What may compute an operator: each implementation in each configuration, built and timed by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule

from polyfuse.autotune.benchmark import Benchmark
from polyfuse.autotune.candidate import (
    BuiltProgram,
    CandidateBuilder,
    CandidateProgram,
    Fault,
    KernelRequest,
    Problem,
    Slot,
)
from polyfuse.autotune.gemm_choice import GemmSelection, gemm_tasks
from polyfuse.autotune.gemm_search import LIBRARY
from polyfuse.autotune.kernels import KernelTask
from polyfuse.autotune.search import TuningTask
from polyfuse.autotune.segments import Operands, Segment, node_names
from polyfuse.base.digest import digest
from polyfuse.base.errors import InputLayoutError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.cache.timings import FAILED, Candidate
from polyfuse.compiler.claims import lower_and_claim
from polyfuse.compiler.reports.clock import Clock
from polyfuse.compiler.session import CompileSession, decided, session_for
from polyfuse.frontend.capture import compile_graph
from polyfuse.frontend.graph import AtenGraph
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import View
from polyfuse.plugin import Config
from polyfuse.schedule import Call, Decision, Launch
from polyfuse.symbolic import example_value, storage_size
from polyfuse.torch_compat.options.counterparts import translated
from polyfuse.torch_compat.tracing.frames import without_compile
from polyfuse.torch_compat.tracing.pytree import flatten, unflatten


@dataclass(frozen=True)
class _Inputs:
    """Where the inputs of a graph come from, in its order: the number of an argument, or a tensor that the
    function holds; and the graph itself.
    """

    graph: Graph
    sources: tuple[int | torch.Tensor, ...]


class _SingleCandidate(TuningTask):
    """A problem with one candidate."""

    def __init__(self, key: str, problem: Problem, only: CandidateProgram) -> None:
        self.key, self.problem, self._only = key, problem, only

    def candidates(self) -> Sequence[CandidateProgram]:
        return (self._only,)


@dataclass(frozen=True)
class OperatorChoice:
    """One implementation of an operator, in one configuration, for operands of given sizes.

    Attributes:
        name: unique among the choices of its operator, as `library` or `cpp block_m=4`.
        about: the operator and its operands, for people.
        implementation: `library`, a backend with its variant, or plugin and choice (`plugin:choice`).
        config: of the implementation; None where it has nothing to choose.
        key: equal for the same implementation of the same operator on the same machine, in any process.
        source: what is compiled, each kernel's text; empty where only libraries are called.
    """

    name: str
    about: str
    implementation: str
    config: Config | None
    key: str
    source: tuple[str, ...]
    _program: CandidateProgram = field(repr=False, compare=False)
    _problem: Problem = field(repr=False, compare=False)
    _operands: Mapping[str, int] = field(repr=False, compare=False)
    _inputs: _Inputs = field(repr=False, compare=False)
    _session: CompileSession = field(repr=False, compare=False)

    def precompile(self) -> None:
        """Build it into the kernel store, from where whoever compiles the operator later loads it.

        Raises:
            UnsupportedError: it cannot be built; the text has the compiler's words.
        """
        self._built()

    def benchmark(self, *args: torch.Tensor, out: torch.Tensor | None = None) -> float:
        """Return the milliseconds of one run; it is built first where `precompile` was not called.

        Args:
            args: the tensors to run on, in this process, laid out as those that it was listed for. Without
                any, it is timed on random numbers in the benchmark worker, as autotuning does, and the
                time is remembered as autotuning's are.
            out: what the result is written to, laid out as the operator's result; only with `args`.

        Raises:
            InputLayoutError: tensors of another type, size or stride than those that it was listed for.
            UnsupportedError: it cannot be built or run; or, with `args`, the function is several operators.
        """
        if args:
            bench, built = self._prepared(args, out)
            with torch.no_grad():
                milliseconds = bench.sample(built)
                bench.run(built)
            return milliseconds
        if out is not None:
            raise UnsupportedError(
                "`out` is given without tensors to run on", "give the operator's arguments"
            )
        built = self._built()
        task = _SingleCandidate(self.key, self._problem, self._program)
        trial = self._session.tuner.search([task])[self.key].of(self._program.candidate)
        if trial is None or trial.milliseconds == FAILED:
            reason = trial.fault if trial is not None else "autotuning only looks up, or its time is used up"
            raise UnsupportedError(f"{built.name} was not timed: {reason}")
        return trial.milliseconds

    def __call__(self, *args: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Run it once and return the result; arguments and errors as for `benchmark`."""
        bench, built = self._prepared(args, out)
        with torch.no_grad():
            bench.run(built)
        return out if out is not None else self._result(bench.held(self._operands[self._output.buffer]))

    @property
    def _output(self) -> View:
        views = [item.value for item in self._inputs.graph.outputs if isinstance(item.value, View)]
        if len(views) != 1 or views[0].buffer not in self._operands:
            raise UnsupportedError(
                f"{self.about} is only a part of the function that was given, or has several results",
                "list the choices of a function with one operator and one result to run them on tensors",
            )
        return views[0]

    def _built(self) -> BuiltProgram:
        builder = CandidateBuilder(self._session.pool, self._session.store)
        builder.begin([self._program])
        builder.wait()
        try:
            return builder.built(self._program)
        except Fault as fault:
            raise UnsupportedError(f"choice {self.name} of {self.about}: {fault}") from None

    def _prepared(
        self, args: Sequence[torch.Tensor], out: torch.Tensor | None
    ) -> tuple[Benchmark, BuiltProgram]:
        """The choice, loaded beside storages that are those of the arguments."""
        given: dict[int, torch.Tensor] = {}
        graph, output = self._inputs.graph, self._output
        for item, source in zip(graph.inputs, self._inputs.sources, strict=True):
            number = self._operands.get(item.name)
            if number is None:
                continue
            if isinstance(source, int) and source >= len(args):
                raise InputLayoutError(f"argument {source} is missing", "give as many as were listed for")
            value = args[source] if isinstance(source, int) else source
            given[number] = _flat(value, graph.buffers[item.name].view(), self._problem, number)
        if out is not None:
            number = self._operands[output.buffer]
            given[number] = _flat(out, output, self._problem, number)
        bench = Benchmark(self._session.plugins.backend, self._session.plugins.timer)
        bench.prepare(self._problem, given)
        return bench, self._built()

    def _result(self, held: torch.Tensor) -> torch.Tensor:
        size, stride, offset = _layout(self._output)
        return held.as_strided(size, stride, offset).clone()


@dataclass(frozen=True)
class OperatorChoices(Sequence[OperatorChoice]):
    """The choices of a function's operators, the library's first, then in the order in which they are tried.

    Attributes:
        found: these.
        declined: (implementation, reason) of those that do not apply.
    """

    found: tuple[OperatorChoice, ...]
    declined: tuple[tuple[str, str], ...]

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: Any) -> Any:
        return self.found[index]

    def __iter__(self) -> Iterator[OperatorChoice]:
        return iter(self.found)


def choices(
    fn: Callable[..., Any],
    *args: Any,
    mode: str | None = "max-autotune",
    options: Mapping[str, Any] | None = None,
) -> OperatorChoices:
    """List what may compute an operator for these arguments, without building or timing anything.

    Matmuls, convolutions and what plugins have a `Choice` for have the library's call, what backends
    generate, and what plugins offer. Other operators have the configurations of their kernel, or the eager
    operator alone. The function is run once in eager mode, without gradients.

    Args:
        fn: an operator such as `torch.mm`, or a function or module that calls one; of several operators, the
            choices of each follow one another.
        args: tensors and other arguments; sizes are taken as they are.
        mode, options: as for `torch.compile(fn, backend="polyfuse", ...)`: which backends are asked, and for
            how many configurations.

    Raises:
        UnsupportedError: the function computes nothing from tensors.
    """
    session = session_for(decided(Settings.resolve(mode, translated(options))))
    listed: list[OperatorChoices] = []
    module, tensors = _captured(without_compile(fn), args)

    def inner(aten: AtenGraph) -> Callable[[list[Any]], Any]:
        def run(values: list[Any]) -> Any:
            held = list(values)
            values.clear()
            numbers = {id(value): number for number, value in enumerate(args)}
            sources = tuple(numbers.get(id(value), value) for value in held)
            listed.append(_listed(aten, sources, session))
            return aten.module(*held)

        return run

    settings, channels_last = session.settings, session.wants_channels_last
    with torch.no_grad():
        compile_graph(module, tensors, inner=inner, settings=settings, channels_last=channels_last)(*tensors)
    found = tuple(choice for part in listed for choice in part)
    if not found:
        raise UnsupportedError("nothing is computed from the tensors that the function is given")
    return OperatorChoices(found, tuple(row for part in listed for row in part.declined))


def _captured(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[GraphModule, list[torch.Tensor]]:
    """A graph whose one node calls the function, which is traced through it, and the tensors that it takes;
    everything else is fixed.
    """
    graph, tensors = FxGraph(), list[torch.Tensor]()
    leaves, spec = flatten(tuple(args))
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
            leaves[number] = graph.placeholder(f"x{len(tensors)}")
    given = unflatten(leaves, spec)
    if isinstance(fn, torch.nn.Module):
        result = graph.call_module("fn", given)
    else:
        result = graph.call_function(fn, given)
    graph.output(result)
    return GraphModule({"fn": fn} if isinstance(fn, torch.nn.Module) else {}, graph), tensors


def _listed(
    aten: AtenGraph, sources: tuple[int | torch.Tensor, ...], session: CompileSession
) -> OperatorChoices:
    """The choices of all operators of a graph."""
    claims, tuner = lower_and_claim(aten, session, {}, Clock()).claims, session.tuner
    graph, decisions = claims.graph, list[Decision]()
    tasks = gemm_tasks(tuner, graph, claims.backends, decisions)
    inputs = _Inputs(graph, sources)
    found: list[OperatorChoice] = []
    done: set[str] = set()
    for task in tasks.values():
        programs = task.candidates()
        done.update(*map(node_names, task.segment.steps))
        found += _of(task.key, programs, task, task.operands, inputs, session)
    for step in GemmSelection(graph, claims.backends, ()).schedule(tuner).steps:
        if node_names(step) & done:
            continue
        if isinstance(step, Launch):
            asked = [b for b in tuner.claiming_backends(step) if tuner.takes_part(b, step.kernel)]
            kernel = KernelTask(tuner, step.kernel, asked)
            pairs = zip(step.operands, kernel.operands, strict=True)
            names = {o: slot.number for o, slot in pairs if isinstance(o, str) and isinstance(slot, Slot)}
            programs = [p for b in asked for p in _in_all_configs(kernel, b.name)]
            found += _of(kernel.key, programs, kernel, names, inputs, session)
        else:
            found += _of_library(step, inputs, session)
    refused = tuple((d.second, d.reason) for d in decisions if d.kind == "declined")
    return OperatorChoices(tuple(found), refused)


def _in_all_configs(task: KernelTask, backend: str) -> list[CandidateProgram]:
    made = (task.program(Candidate(backend, config)) for config in task.configs(backend))
    return [program for program in made if program is not None]


def _of_library(step: Call, inputs: _Inputs, session: CompileSession) -> list[OperatorChoice]:
    """The one choice of a call that nobody else does; none where it takes what only the model has."""
    operands, graph, tuner = Operands(inputs.graph.symbol_hints), inputs.graph, session.tuner
    device = next((graph.buffers[name].device for name in step.writes), "cpu")
    try:
        program = CandidateProgram(Candidate(LIBRARY), (operands.call(graph, step.node),))
    except UnsupportedError:
        return []
    segment = Segment(graph, (step,))
    task = _SingleCandidate(
        tuner.key(step.node.op, (), device, {LIBRARY: segment.describe()}),
        operands.problem(step.node.op, device, tuner.timer(device).name, [segment]),
        program,
    )
    return _of(task.key, [program], task, operands.numbers, inputs, session)


def _of(
    key: str,
    programs: Sequence[CandidateProgram],
    task: TuningTask,
    operands: Mapping[str, int],
    inputs: _Inputs,
    session: CompileSession,
) -> list[OperatorChoice]:
    return [
        OperatorChoice(
            program.name,
            task.problem.about,
            program.candidate.implementation,
            program.config,
            digest(key, program.name),
            tuple(step.source.rendered() for step in program.steps if isinstance(step, KernelRequest)),
            program,
            task.problem,
            operands,
            inputs,
            session,
        )
        for program in programs
    ]


def _layout(view: View) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    size, stride = (tuple(example_value(n, {}) for n in part) for part in (view.size, view.stride))
    return size, stride, example_value(view.offset, {})


def _flat(value: Any, wanted: View, problem: Problem, number: int) -> torch.Tensor:
    """The elements of a tensor from its first one on, as a storage of a problem."""
    storage = problem.storages[number]
    size, stride, _ = _layout(wanted)
    text = f"{storage.dtype} of size {size} with strides {stride} on {storage.device}"
    if not isinstance(value, torch.Tensor):
        raise InputLayoutError(
            f"{type(value).__name__} is given for {text}", "give a tensor like those listed for"
        )
    moves = any(n > 1 and s != t for n, s, t in zip(size, value.stride(), stride, strict=False))
    if (
        (str(value.dtype), tuple(value.shape)) != (f"torch.{storage.dtype}", size)
        or moves
        or value.device.type != torch.device(storage.device).type
    ):
        raise InputLayoutError(
            f"a tensor of {value.dtype}, size {tuple(value.shape)}, strides {value.stride()} on"
            f" {value.device} is given for {text}",
            "list the choices for tensors like it",
        )
    count = example_value(storage_size(size, stride), {})
    return value.detach().as_strided((max(1, count) if count else 0,), (1,), value.storage_offset())
