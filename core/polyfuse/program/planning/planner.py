"""Schedule to program: symbols, checks, memory, launches, calls and results, in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from polyfuse.base.settings import Settings
from polyfuse.ir.graph import Graph, views_in
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import RAISE, Collective, ExternCall, Node, Opaque, Origin, SymbolPath, View
from polyfuse.program.device_graphs import doubtful, graph_facts, partition_fault, preventing_option
from polyfuse.program.lifetimes import lifetimes, released_inputs, unused_inputs, used_buffers, used_constants
from polyfuse.program.loops.finding import LoopFinder, NotALoop, Skipped
from polyfuse.program.memory import Block, MemoryPlan, plan_memory
from polyfuse.program.partitions import RecordingContext, Work, find_partitions
from polyfuse.program.planning.inputs import (
    assumed_alignments,
    layout_checks,
    program_input,
    results_of,
    views_of_inputs,
)
from polyfuse.program.planning.storage import StepList, Storage, is_view_of_result, is_whole, repeated_views
from polyfuse.program.pools import PoolSlice, cached_pools, plan_pools
from polyfuse.program.steps import (
    AssertFinite,
    AssertLayout,
    BindSymbol,
    Conform,
    ExternStep,
    Free,
    LaunchKernel,
    MakeView,
    Observe,
    Partition,
    Program,
    ProgramKernel,
    RaiseFailed,
    Read,
    Ref,
    Return,
    Step,
    Synchronize,
)
from polyfuse.program.symbols import bind_symbols, expressions, symbols_in
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.graphs.replay import GraphFacts
from polyfuse.schedule.result import Call, Launch, Schedule
from polyfuse.symbolic import free_symbols


def plan(
    schedule: Schedule, settings: Settings, *, observe: bool = False, skipped: Skipped | None = None
) -> Program:
    """The host program of a schedule.

    Args:
        schedule: what to run.
        settings: which checks and markers to put in, and whether memory is reused.
        observe: whether every computed value is shown to the observer (`polyfuse.runtime.set_observer`).
        skipped: the layers that the schedule leaves out; the program runs them in a loop.

    Raises:
        UnsupportedError: a size cannot be computed from the inputs.
        NotALoop: what was left out has no loop.
    """
    return _Planner(schedule, settings, observe, skipped).program()


def memory_plan(schedule: Schedule, settings: Settings) -> MemoryPlan:
    """Only the memory part of `plan`: who takes whose storage, and the peak."""
    return _Planner(schedule, settings, False).memory


class _Planner:
    """The state of planning one schedule."""

    def __init__(
        self, schedule: Schedule, settings: Settings, observe: bool, skipped: Skipped | None = None
    ) -> None:
        self.schedule = schedule
        self.skipped = skipped
        self.graph: Graph = schedule.graph
        self.settings = settings
        self.observe = observe
        self.removed = frozenset(schedule.removed)
        given = dict(skipped.given) if skipped is not None else {}
        self.alignments = assumed_alignments(schedule)
        self.alignments |= {n: self.alignments[like] for n, like in given.items() if like in self.alignments}
        graph, mutated = self.graph, frozenset(self.graph.mutated_inputs())
        self.inputs = tuple(program_input(i, graph, self.alignments, mutated) for i in graph.inputs)
        # the first device of the graph that is not the CPU
        devices = (b.device for b in graph.buffers.values())
        self.device = next((d for d in devices if d and not device_of(d).is_host), "")
        self.used = used_buffers(schedule).union(given)
        self.unused = unused_inputs(graph, self.used)
        self.lifetimes = lifetimes(schedule, settings)
        self.slices = self._slices()
        blocks: list[Block] = list(dict.fromkeys(part.pool for part in self.slices.values()))
        if skipped is not None:
            blocks.append(skipped.held(self.lifetimes))
        self.memory = plan_memory(
            [item for item in self.lifetimes if item.name not in self.slices],
            len(schedule.steps),
            settings.reuse_buffers,
            blocks,
            released_inputs(schedule),
        )
        self.steps = StepList((*graph.buffers, *graph.objects, *(item.name for item in self.inputs)))
        self.storage = Storage(
            graph,
            self.inputs,
            self.memory,
            self.slices,
            self.removed,
            repeated_views(graph, schedule),
            self.steps,
        )
        self.work: dict[int, Work] = {}
        self.main_device = self.device or "cpu"
        self.kernels = KernelTable()

    def _slices(self) -> dict[str, PoolSlice]:
        """The buffers that lie in pools: all that can, or large ones that are cached from call to call."""
        settings, buffers = self.settings, self.graph.buffers
        if self.graph.kind != "inference":
            return {}
        known = self._known_sizes()
        if settings.memory_pools:
            return plan_pools(self.lifetimes, buffers, known)
        keeps = settings.keep_memory and not settings.native_host and not self.device
        return cached_pools(self.lifetimes, buffers, known) if keeps else {}

    def _known_sizes(self) -> dict[str, int]:
        """Example values of the symbols that follow from the inputs: those that data decide are not there
        when a pool is allocated.
        """
        numbers = (n for i in self.inputs for n in (*i.size, *i.stride, i.value) if n is not None)
        names = {name for n in numbers for name in free_symbols(n)}
        return {name: value for name, value in self.graph.symbol_hints.items() if name in names}

    def program(self) -> Program:
        """Plan everything."""
        prologue_end = self._prologue()
        marks: list[int] = []
        borders = (self.skipped.first, self.skipped.behind, self.skipped.end) if self.skipped else ()
        for position, step in enumerate(self.schedule.steps):
            if position in borders:
                marks.append(len(self.steps))
            self.steps.origins = _origins(step)
            dying = self.schedule.last_use[position]
            if isinstance(step, Launch):
                self._launch(step)
            else:
                self._call(step, dying)
            self.storage.free(dying, position)
        self.steps.origins = ()
        # what would be forgotten after the last launch goes with the return anyway
        while len(self.steps) > prologue_end and isinstance(self.steps[-1], Free):
            self.steps.pop()
        constants = tuple((name, name) for name in used_constants(self.graph, self.used))
        finder = None
        if self.skipped is not None:
            if self.device or len(marks) != 3:
                raise NotALoop("layers of a device's program, or without steps of their own, are shown each")
            finder = LoopFinder(self.steps, marks, self.skipped, frozenset(name for name, _ in constants))
        self._return(finder)
        steps = tuple(self.steps)
        once, always = layout_checks(self.inputs, self.unused) if self.settings.size_asserts else ((), ())
        symbols = self._symbols((*always, *steps))
        recording = graph_facts(self.schedule, self.inputs, self.unused, self.settings)
        first = len(symbols) + len(always)
        steps = (*symbols, *always, *steps)
        return Program(
            name=self.graph.name,
            kind=self.graph.kind,
            inputs=self.inputs,
            checks=once,
            steps=steps,
            kernels=self.kernels.entries(),
            constants=constants,
            device=self.device,
            profile=self.settings.profile,
            symbol_hints=tuple(sorted(self.graph.symbol_hints.items())),
            recording=recording,
            partitions=self._partitions(recording, steps, first, frozenset(name for name, _ in constants)),
            views=views_of_inputs(self.graph, self.skipped),
            loop=None if finder is None else finder.loop(first),
        )

    def _partitions(
        self, recording: GraphFacts | None, steps: tuple[Step, ...], first: int, constants: frozenset[str]
    ) -> tuple[Partition, ...]:
        """What is recorded of a program that cannot be recorded as a whole, or of which trying may show that,
        where no option is against it.
        """
        if recording is None or preventing_option(self.settings):
            return ()
        if not recording.refused and not any(doubtful(step, self.graph) for step in self.schedule.steps):
            return ()
        around = RecordingContext(self.graph, self.main_device, constants, recording.limit)
        return find_partitions(steps, {first + i: work for i, work in self.work.items()}, around)

    def _prologue(self) -> int:
        """Checks of input values, and release of inputs that nothing uses."""
        if self.settings.nan_asserts:
            for item in self.inputs:
                if item.kind == "tensor":
                    self.steps.add(AssertFinite(item.name, f"input {item.shown}"))
        self.storage.drop(self.unused)
        return len(self.steps)

    def _symbols(self, steps: Sequence[Step]) -> tuple[BindSymbol, ...]:
        made = {s.symbol for s in steps if isinstance(s, BindSymbol)}
        used = symbols_in(expressions(steps))
        return bind_symbols(self.inputs, (name for name in used if name not in made))

    def _launch(self, launch: Launch) -> None:
        renamed: dict[str, str] = {}
        for name in (*launch.operands, *launch.writes):
            if isinstance(name, str) and name not in renamed:
                taken = self.storage.ensure(name)
                if taken:
                    renamed[taken] = name
        # an operand whose storage was taken over in this very step is at the same address under its new name
        operands = tuple(renamed.get(o, o) if isinstance(o, str) else o for o in launch.operands)
        device = self.graph.buffers[launch.writes[0]].device if launch.writes else self.device
        elsewhere = device if device != self.device and not device_of(device).is_host else ""
        self._note(launch, tuple(renamed.get(name, name) for name in launch.writes))
        self.steps.add(LaunchKernel(self.kernels.name_of(launch), operands, elsewhere))
        self._after(launch.writes, launch.kernel.device)

    def _note(self, step: Launch | Call, writes: tuple[str, ...]) -> None:
        """Keep what the next step does, for what records partitions of the program."""
        if self.settings.device_graphs:
            fault = partition_fault(step, self.graph, self.main_device)
            if not fault and doubtful(step, self.graph):
                fault = "may be impossible to record"
            self.work[len(self.steps)] = Work(fault, writes)

    def _call(self, step: Call, dying: Sequence[str]) -> None:
        node = step.node
        for view in views_in((node.args, tuple(value for _, value in node.kwargs))):
            self.storage.ensure(view.buffer)
        args = self.storage.operand(node.args)
        kwargs = tuple((key, self.storage.operand(value)) for key, value in node.kwargs)
        if node.op == RAISE:
            self._note(step, ())
            status, rows = node.args[0].buffer, node.args[1]
            # layers that a loop stands for may look at one status in each turn
            last = status in dying and self.skipped is None
            self.steps.add(RaiseFailed(status, rows, last))
            return
        outputs = tuple("" if name in self.removed else name for name in node.outputs)
        if node.out == "out":
            taken = self.storage.ensure(outputs[0])
            if taken:  # the term that is added to is known by the result's name
                args = tuple(Ref(outputs[0]) if arg == Ref(taken) else arg for arg in args)
        elif node.out in ("into", "none"):
            outputs = ()
        results, numbers = self._named_results(outputs, node.symbols)
        self._note(step, (*node.mutates, *(n for n in node.outputs if node.out in ("out", "into"))))
        self.steps.add(ExternStep(node.op, args, kwargs, results, "none" if node.out == "into" else node.out))
        self._bind_results(results, node.symbols)
        if node.out in ("single", "tuple"):
            for name in outputs:
                if name:
                    self.storage.bound[name] = None
                    if name not in dying:
                        self._conform(node, name)
        if numbers:
            self.steps.add(Free(numbers))
        device = next((self.graph.buffers[n].device for n in node.writes() if n in self.graph.buffers), "cpu")
        self._after(outputs, device)

    def _named_results(
        self, outputs: tuple[str, ...], symbols: Sequence[tuple[str, SymbolPath]]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names for all results that are needed, and those names that are only needed for their sizes."""
        names = list(outputs)
        extra: list[str] = []
        for symbol, path in symbols:
            at = path.result
            names += [""] * (at + 1 - len(names))
            if path.kind == "item" and not names[at]:
                names[at] = symbol
            elif not names[at]:
                names[at] = self.steps.temporary("result")
                extra.append(names[at])
        return tuple(names), tuple(extra)

    def _bind_results(self, results: Sequence[str], symbols: Sequence[tuple[str, SymbolPath]]) -> None:
        for symbol, path in symbols:
            source, kind = results[path.result], path.kind
            read = Read("value", source) if kind == "item" else Read(kind, source, path.dim)
            self.steps.add(BindSymbol(symbol, read))

    def _conform(self, node: ExternCall, name: str) -> None:
        """Make sure of the layout of a result, unless it shares storage and must stay where it is."""
        buffer = self.graph.buffers.get(name)
        if buffer is None or buffer.kind == "object" or node.aliases:
            return
        if self.settings.size_asserts and not any(n == 0 for n in buffer.size):
            if isinstance(node, Collective):  # it is not complete yet: no time for a copy
                if buffer.dtype is not None:  # else eager operators alone read it, whatever its strides
                    self.steps.add(AssertLayout(name, buffer.size, buffer.stride))
                return
            # what torch's own operators announce is true of the type; others' is as good as their authors
            dtype = "" if node.op.startswith("aten.") else buffer.torch_dtype
            self.steps.add(Conform(name, buffer.size, buffer.stride, self.alignments.get(name, 0), dtype))

    def _after(self, written: Iterable[str], device: str) -> None:
        """Whatever the settings ask for after something was launched."""
        names = [n for n in dict.fromkeys(written) if n and n in self.storage.bound]
        tensors = [n for n in names if self.graph.buffers[n].kind != "object"]
        if self.settings.debug_sync and not device_of(device).is_host:
            self.steps.add(Synchronize(device))
        if self.settings.nan_asserts:
            for name in tensors:
                self.steps.add(AssertFinite(name, name))
        if self.observe:
            label = self.steps.origins[0].fx if self.steps.origins else ""
            for name in tensors:
                self.steps.add(Observe(name, label or name))

    def _return(self, finder: LoopFinder | None = None) -> None:
        values: list[Any] = []
        for output, copy in results_of(self.graph, self.skipped):
            value = output.value
            if output.again is not None:
                values.append(values[output.again])
                continue
            if isinstance(value, View) and finder is not None and finder.changes(value):
                if is_view_of_result(value, self.graph):
                    raise NotALoop("layers return views of what they make")
                whole = is_whole(value, self.graph.buffers[value.buffer])
                value = finder.result(Ref(value.buffer) if whole else value, copy, self.storage.views)
            elif isinstance(value, View):
                self.storage.ensure(value.buffer)
                if is_view_of_result(value, self.graph):
                    name = self.steps.temporary("view")
                    self.steps.add(MakeView(name, value, result=True))
                    value = Ref(name)
                else:
                    value = self.storage.operand(value)
            elif isinstance(value, Opaque):
                value = self.storage.operand(value)
            elif isinstance(value, str) and output.kind != "tensor":
                known = value in self.graph.buffers or any(value == item.name for item in self.inputs)
                value = Ref(value) if known else Opaque(key=value)
            values.append(value)
        self.steps.add(Return(tuple(values)))


def _origins(step: Launch | Call) -> tuple[Origin, ...]:
    nodes: tuple[Node, ...] = step.nodes if isinstance(step, Launch) else (step.node,)
    if len(nodes) == 1 and len(nodes[0].origins) < 2:
        return nodes[0].origins
    return tuple(dict.fromkeys(origin for node in nodes for origin in node.origins))


class KernelTable:
    """The kernels of a program that is being planned."""

    def __init__(self) -> None:
        self._names: dict[tuple[Kernel, str], str] = {}
        self._launches: dict[str, list[str]] = {}
        self._known: dict[tuple[int, str], str] = {}  # of kernels that the schedule holds

    def name_of(self, launch: Launch) -> str:
        """The name of what a launch runs."""
        # to compare kernels takes longer than all else that is done with a launch
        known = self._known.get((id(launch.kernel), launch.backend))
        if known is not None:
            self._launches[known].append(launch.name)
            return known
        key = (launch.kernel, launch.backend)
        name = self._names.get(key)
        if name is None:
            plain = "".join(c if c.isalnum() else "_" for c in launch.kernel.name) or "kernel"
            name = self._names[key] = f"{plain}_{len(self._names)}"
        self._launches.setdefault(name, []).append(launch.name)
        self._known[id(launch.kernel), launch.backend] = name
        return name

    def entries(self) -> tuple[ProgramKernel, ...]:
        """Every kernel once, in the order of first launches."""
        return tuple(
            ProgramKernel(name, kernel, backend, tuple(self._launches[name]))
            for (kernel, backend), name in self._names.items()
        )
