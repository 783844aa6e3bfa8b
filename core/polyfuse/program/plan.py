"""Schedule to program: symbols, checks, memory, launches, calls and results, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polyfuse.base.errors import IRError
from polyfuse.base.settings import Settings
from polyfuse.ir.graph import Graph, GraphInput, GraphOutput, views_in
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import RAISE, Buffer, Collective, ExternCall, Node, Opaque, Origin, SymbolPath, View
from polyfuse.ir.records import changed
from polyfuse.program.device_graphs import doubtful, graph_facts, partition_fault, preventing_option
from polyfuse.program.lifetimes import lifetimes, unused_inputs, used_buffers, used_constants
from polyfuse.program.loops.finding import LoopFinder, NotALoop, Skipped
from polyfuse.program.memory import Block, MemoryPlan, plan_memory
from polyfuse.program.partitions import RecordingContext, Work, find_partitions
from polyfuse.program.pools import ALIGNMENT, Pool, PoolSlice, cached_pools, plan_pools
from polyfuse.program.steps import (
    Allocate,
    AssertFinite,
    AssertLayout,
    BindSymbol,
    Conform,
    ExternStep,
    Free,
    KeepMemory,
    LaunchKernel,
    MakeView,
    Observe,
    Partition,
    Program,
    ProgramInput,
    ProgramKernel,
    RaiseFailed,
    Read,
    Ref,
    Return,
    Reuse,
    Step,
    Synchronize,
)
from polyfuse.program.symbols import bind_symbols, expressions, symbols_in
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.graphs.replay import GraphFacts
from polyfuse.schedule.result import Call, Launch, Schedule


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
        self.alignments = _assumed_alignments(schedule)
        self.alignments |= {n: self.alignments[like] for n, like in given.items() if like in self.alignments}
        graph, mutated = self.graph, frozenset(self.graph.mutated_inputs())
        self.inputs = tuple(_program_input(i, graph, self.alignments, mutated) for i in graph.inputs)
        # the first device of the graph that is not the CPU
        devices = (b.device for b in graph.buffers.values())
        self.device = next((d for d in devices if d and not device_of(d).is_host), "")
        self.live_out = frozenset(self.graph.output_buffers())
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
        )
        self.taken = {old: new for new, old in self.memory.takes.items()}
        self.dead: set[str] = set()
        self.bound: dict[str, None] = {item.name: None for item in self.inputs if item.kind == "tensor"}
        self.host_inputs = frozenset(item.name for item in self.graph.inputs if item.kind == "object")
        self.pool_names: dict[Pool, str] = {}
        self.repeated = _repeated_views(self.graph, schedule)
        self.views: dict[View, str] = {}
        self.steps: list[Step] = []
        self.work: dict[int, Work] = {}
        self.main_device = self.device or "cpu"
        self.origins: tuple[Origin, ...] = ()
        self.temporaries = 0
        self.names_taken = {*self.graph.buffers, *self.graph.objects, *(item.name for item in self.inputs)}
        self.kernels = _KernelTable()

    def _slices(self) -> dict[str, PoolSlice]:
        """The buffers that lie in pools: all that can, or large ones that are cached from call to call."""
        settings, buffers = self.settings, self.graph.buffers
        if self.graph.kind != "inference":
            return {}
        if settings.memory_pools:
            return plan_pools(self.lifetimes, buffers, self.graph.symbol_hints)
        keeps = settings.keep_memory and not settings.native_host and not self.device
        return cached_pools(self.lifetimes, buffers) if keeps else {}

    def program(self) -> Program:
        """Plan everything."""
        prologue_end = self._prologue()
        marks: list[int] = []
        borders = (self.skipped.first, self.skipped.behind, self.skipped.end) if self.skipped else ()
        for position, step in enumerate(self.schedule.steps):
            if position in borders:
                marks.append(len(self.steps))
            self.origins = _origins(step)
            dying = self.schedule.last_use[position]
            if isinstance(step, Launch):
                self._launch(step)
            else:
                self._call(step, dying)
            self._free(dying)
            self._free_pools(position)
        self.origins = ()
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
        once, always = self._layout_checks()
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
            views=_views_of_inputs(self.graph, self.skipped),
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
                    self._add(AssertFinite(item.name, f"input {item.shown}"))
        if self.unused:
            self._add(Free(self.unused))
            for name in self.unused:
                self._forget(name)
        return len(self.steps)

    def _layout_checks(self) -> tuple[tuple[AssertLayout, ...], tuple[AssertLayout, ...]]:
        """Checks made at the first call only, and at every call.

        A parameter is the same object in every call, so once is enough for it.
        """
        once: list[AssertLayout] = []
        always: list[AssertLayout] = []
        for item in self.inputs if self.settings.size_asserts else ():
            # an empty tensor's strides mean nothing
            if item.kind == "tensor" and item.name not in self.unused and not any(n == 0 for n in item.size):
                plain = all(isinstance(n, int) for n in (*item.size, *item.stride))
                checks = once if item.static and plain else always
                checks.append(AssertLayout(item.name, item.size, item.stride))
        return tuple(once), tuple(always)

    def _symbols(self, steps: Sequence[Step]) -> tuple[BindSymbol, ...]:
        made = {s.symbol for s in steps if isinstance(s, BindSymbol)}
        used = symbols_in(expressions(steps))
        return bind_symbols(self.inputs, (name for name in used if name not in made))

    def _add(self, step: Step) -> None:
        self.steps.append(changed(step, origins=self.origins) if self.origins else step)

    def _launch(self, launch: Launch) -> None:
        renamed: dict[str, str] = {}
        for name in (*launch.operands, *launch.writes):
            if isinstance(name, str) and name not in renamed:
                taken = self._ensure(name)
                if taken:
                    renamed[taken] = name
        # an operand whose storage was taken over in this very step is at the same address under its new name
        operands = tuple(renamed.get(o, o) if isinstance(o, str) else o for o in launch.operands)
        device = self.graph.buffers[launch.writes[0]].device if launch.writes else self.device
        elsewhere = device if device != self.device and not device_of(device).is_host else ""
        self._note(launch, tuple(renamed.get(name, name) for name in launch.writes))
        self._add(LaunchKernel(self.kernels.name_of(launch), operands, elsewhere))
        self._after(launch.writes, launch.kernel.device)

    def _ensure(self, name: str) -> str:
        """Give a buffer memory if it has none. Returns the buffer whose storage it takes over, or ``""``."""
        buffer = self.graph.buffers[name]
        if name in self.bound or name in self.removed or buffer.kind == "constant":
            return ""
        if buffer.kind != "temp" or name in self.dead:
            raise IRError(
                f"the schedule of {self.graph.name} uses {name} where it has no value",
                "report it with the dumped schedule",
            )
        self.bound[name] = None
        if name in self.slices:
            self._carve(name, self.slices[name])
            return ""
        old = self.memory.takes.get(name)
        if old is None:
            self._add(Allocate(name, buffer.size, buffer.stride, buffer.torch_dtype, buffer.device))
            return ""
        before = self.graph.buffers[old]
        same = (before.size, before.stride) == (buffer.size, buffer.stride)
        self._forget_views(old)
        self._add(Reuse(name, old, buffer.size, buffer.stride, same))
        self._forget(old)
        return old

    def _carve(self, name: str, part: PoolSlice) -> None:
        """Make a buffer a part of its pool; the first one of a pool allocates that."""
        buffer, pool = self.graph.buffers[name], part.pool
        if pool not in self.pool_names:
            self.pool_names[pool] = self._temporary("pool")
            size = (pool.extent,)
            self._add(Allocate(self.pool_names[pool], size, (1,), "uint8", pool.device, pool.cached))
        offset = part.units * (ALIGNMENT // buffer.itemsize)
        view = View(self.pool_names[pool], buffer.size, buffer.stride, offset, buffer.dtype)
        self._add(MakeView(name, view))

    def _free_pools(self, position: int) -> None:
        """Release the pools whose last buffer died in this step."""
        done = tuple(name for pool, name in self.pool_names.items() if pool.last == position)
        for pool, name in self.pool_names.items():
            if pool.cached and name in done:
                self._add(KeepMemory(name))
        if done:
            self._add(Free(done))

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
            self._ensure(view.buffer)
        args = self._operand(node.args)
        kwargs = tuple((key, self._operand(value)) for key, value in node.kwargs)
        if node.op == RAISE:
            self._note(step, ())
            self._add(RaiseFailed(node.args[0].buffer, node.args[1]))
            return
        outputs = tuple("" if name in self.removed else name for name in node.outputs)
        if node.out == "out":
            taken = self._ensure(outputs[0])
            if taken:  # the term that is added to is known by the result's name
                args = tuple(Ref(outputs[0]) if arg == Ref(taken) else arg for arg in args)
        elif node.out in ("into", "none"):
            outputs = ()
        results, numbers = self._named_results(outputs, node.symbols)
        self._note(step, (*node.mutates, *(n for n in node.outputs if node.out in ("out", "into"))))
        self._add(ExternStep(node.op, args, kwargs, results, "none" if node.out == "into" else node.out))
        self._bind_results(results, node.symbols)
        if node.out in ("single", "tuple"):
            for name in outputs:
                if name:
                    self.bound[name] = None
                    if name not in dying:
                        self._conform(node, name)
        if numbers:
            self._add(Free(numbers))
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
                names[at] = self._temporary("result")
                extra.append(names[at])
        return tuple(names), tuple(extra)

    def _bind_results(self, results: Sequence[str], symbols: Sequence[tuple[str, SymbolPath]]) -> None:
        for symbol, path in symbols:
            source, kind = results[path.result], path.kind
            read = Read("value", source) if kind == "item" else Read(kind, source, path.dim)
            self._add(BindSymbol(symbol, read))

    def _conform(self, node: ExternCall, name: str) -> None:
        """Make sure of the layout of a result, unless it shares storage and must stay where it is."""
        buffer = self.graph.buffers.get(name)
        if buffer is None or buffer.kind == "object" or node.aliases:
            return
        if self.settings.size_asserts and not any(n == 0 for n in buffer.size):
            if isinstance(node, Collective):  # it is not complete yet: no time for a copy
                if buffer.dtype is not None:  # else eager operators alone read it, whatever its strides
                    self._add(AssertLayout(name, buffer.size, buffer.stride))
                return
            # what torch's own operators announce is true of the type; others' is as good as their authors
            dtype = "" if node.op.startswith("aten.") else buffer.torch_dtype
            self._add(Conform(name, buffer.size, buffer.stride, self.alignments.get(name, 0), dtype))

    def _after(self, written: Iterable[str], device: str) -> None:
        """Whatever the settings ask for after something was launched."""
        names = [n for n in dict.fromkeys(written) if n and n in self.bound]
        tensors = [n for n in names if self.graph.buffers[n].kind != "object"]
        if self.settings.debug_sync and not device_of(device).is_host:
            self._add(Synchronize(device))
        if self.settings.nan_asserts:
            for name in tensors:
                self._add(AssertFinite(name, name))
        if self.observe:
            label = self.origins[0].fx if self.origins else ""
            for name in tensors:
                self._add(Observe(name, label or name))

    def _free(self, dead: Iterable[str]) -> None:
        names: list[str] = []
        for name in dead:
            if name in self.bound and name not in self.taken and name not in self.live_out:
                names.extend(self._views_of(name))
                names.append(name)
                self._forget(name)
            elif name in self.bound and name in self.taken:
                self._forget_views(name)
        if names:
            self._add(Free(tuple(names)))

    def _forget(self, name: str) -> None:
        del self.bound[name]
        self.dead.add(name)

    def _views_of(self, buffer: str) -> list[str]:
        found = [view for view in self.views if view.buffer == buffer]
        return [self.views.pop(view) for view in found]

    def _forget_views(self, buffer: str) -> None:
        names = self._views_of(buffer)
        if names:
            self._add(Free(tuple(names)))

    def _temporary(self, prefix: str) -> str:
        """A variable that the graph has no name like: its inputs are called after the traced nodes."""
        while True:
            self.temporaries += 1
            name = f"{prefix}_{self.temporaries}"
            if name not in self.names_taken:
                return name

    def _operand(self, value: Any) -> Any:
        """An argument with its views replaced by variables, where there are any."""
        if isinstance(value, (tuple, list)):
            return tuple(self._operand(item) for item in value)
        if isinstance(value, Opaque) and value.key in self.host_inputs:
            return Ref(value.key)
        if not isinstance(value, View):
            return value
        buffer = self.graph.buffers[value.buffer]
        if is_whole(value, buffer):
            return Ref(value.buffer)
        if value not in self.repeated:
            return value
        if value not in self.views:
            name = self._temporary("view")
            self._add(MakeView(name, value))
            self.views[value] = name
        return Ref(self.views[value])

    def _return(self, finder: LoopFinder | None = None) -> None:
        values: list[Any] = []
        for output, copy in _results(self.graph, self.skipped):
            value = output.value
            if isinstance(value, View) and finder is not None and finder.changes(value):
                if _is_view_of_result(value, self.graph):
                    raise NotALoop("layers return views of what they make")
                whole = is_whole(value, self.graph.buffers[value.buffer])
                value = finder.result(Ref(value.buffer) if whole else value, copy, self.views)
            elif isinstance(value, View):
                self._ensure(value.buffer)
                if _is_view_of_result(value, self.graph):
                    name = self._temporary("view")
                    self._add(MakeView(name, value, result=True))
                    value = Ref(name)
                else:
                    value = self._operand(value)
            elif isinstance(value, Opaque):
                value = self._operand(value)
            elif isinstance(value, str) and output.kind != "tensor":
                known = value in self.graph.buffers or any(value == item.name for item in self.inputs)
                value = Ref(value) if known else Opaque(key=value)
            values.append(value)
        self._add(Return(tuple(values)))


class _KernelTable:
    """Names for kernels; launches of equal kernels share one."""

    def __init__(self) -> None:
        self._names: dict[tuple[Kernel, str], str] = {}
        self._launches: dict[str, list[str]] = {}
        self._known: dict[tuple[int, str], str] = {}  # of kernels that the schedule holds

    def name_of(self, launch: Launch) -> str:
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
        return tuple(
            ProgramKernel(name, kernel, backend, tuple(self._launches[name]))
            for (kernel, backend), name in self._names.items()
        )


def is_whole(view: View, buffer: Buffer) -> bool:
    """Whether a view is the buffer itself."""
    return (
        (view.size, view.stride, view.offset) == (buffer.size, buffer.stride, 0)
        and (view.dtype is None or view.dtype is buffer.dtype)
    ) or buffer.kind == "object"


def _is_view_of_result(view: View, graph: Graph) -> bool:
    """Whether a result is a view of what the graph computed, of which autograd is to know.

    AOTAutograd makes those of inputs, and in training those that autograd follows, from their bases.
    """
    buffer = graph.buffers[view.buffer]
    if graph.kind != "inference" or view.dtype is not None or is_whole(view, buffer):
        return False
    return all(view.buffer != item.name for item in graph.inputs)


def _results(graph: Graph, skipped: Skipped | None) -> Iterable[tuple[GraphOutput, int]]:
    """The results of a program, and how many layers later than it stands there each is made."""
    return [(output, 0) for output in graph.outputs] if skipped is None else skipped.outputs


def _views_of_inputs(graph: Graph, skipped: Skipped | None) -> tuple[tuple[int, int], ...]:
    if graph.kind != "forward":
        return ()
    single = {name for row in skipped.inputs for name in row} if skipped is not None else set()
    inputs = {item.name: i for i, item in enumerate(graph.inputs) if item.name in graph.buffers}
    outputs = [output for output, _ in _results(graph, skipped)]
    if any(isinstance(o.value, View) and not o.saved and o.value.buffer in single for o in outputs):
        raise NotALoop("layers return what they are given")
    return tuple(
        (k, inputs[output.value.buffer])
        for k, output in enumerate(outputs)
        if isinstance(output.value, View) and not output.saved and output.value.buffer in inputs
        if output.value.dtype is None and not is_whole(output.value, graph.buffers[output.value.buffer])
    )


def _program_input(
    item: GraphInput, graph: Graph, alignments: Mapping[str, int], mutated: frozenset[str]
) -> ProgramInput:
    buffer = graph.buffers.get(item.name)
    if item.kind != "tensor" or buffer is None:
        kind = "object" if item.kind == "tensor" else item.kind
        return ProgramInput(item.name, kind, value=item.value, static=item.static, label=item.label)
    return ProgramInput(
        item.name,
        "tensor",
        buffer.size,
        buffer.stride,
        buffer.torch_dtype,
        buffer.device,
        item.static,
        alignments.get(item.name, 0) if item.address == "traced" else 0,
        item.name in mutated,
        label=item.label,
    )


def _assumed_alignments(schedule: Schedule) -> dict[str, int]:
    """Bytes of which a buffer's address must be a multiple, for those of which some kernel assumes it."""
    found: dict[str, int] = {}
    for step in schedule.steps:
        if isinstance(step, Launch) and step.alignment:
            # scratch stands behind the arguments
            for arg, operand in zip(step.kernel.args, step.operands, strict=False):
                if arg.aligned and isinstance(operand, str):
                    found[operand] = max(found.get(operand, 0), step.alignment)
    return found


def _repeated_views(graph: Graph, schedule: Schedule) -> frozenset[View]:
    """Views that are needed more than once, as operands or results."""
    counts: dict[View, int] = {}
    wanted: list[Any] = [o.value for o in graph.outputs]
    for step in schedule.steps:
        if isinstance(step, Call):
            wanted.append((step.node.args, tuple(value for _, value in step.node.kwargs)))
    for view in views_in(wanted):
        if not is_whole(view, graph.buffers[view.buffer]):
            counts[view] = counts.get(view, 0) + 1
    return frozenset(view for view, count in counts.items() if count > 1)


def _origins(step: Launch | Call) -> tuple[Origin, ...]:
    nodes: tuple[Node, ...] = step.nodes if isinstance(step, Launch) else (step.node,)
    if len(nodes) == 1 and len(nodes[0].origins) < 2:
        return nodes[0].origins
    return tuple(dict.fromkeys(origin for node in nodes for origin in node.origins))
