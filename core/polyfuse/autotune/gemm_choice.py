"""Which calls of a graph a library does, which a backend generates, and for which a plugin has something
else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from polyfuse.autotune.alternatives import Alternative, Replacement, fixed_inputs, replace_calls
from polyfuse.autotune.gemm_candidates import (
    GeneratedGemm,
    TunableCall,
    narrow_gemm,
    packed_gemm,
    tunable_calls,
    with_taps_once,
)
from polyfuse.autotune.gemm_search import LIBRARY, GemmTask, implementations_of
from polyfuse.autotune.packing import within_room
from polyfuse.autotune.report import trials_text
from polyfuse.autotune.tuner import Tuner
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import warn_once
from polyfuse.cache.timings import Candidate
from polyfuse.ir.digest import ir_digest
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import TemplateCall, View
from polyfuse.lowering.reductions.depthwise import depthwise_loops, margin_of, of_lines, read_of_lines
from polyfuse.lowering.reductions.gemm_loops import GemmLoops, Unavailable, gemm_loops
from polyfuse.plugin import Backend
from polyfuse.schedule import Call, Decision, Launch, Schedule, TuningDecision, Unfused
from polyfuse.schedule.reductions.gemm_reductions import is_group_store, reduction_of
from polyfuse.schedule.schedule import schedule_graph

_LINEAR = ("aten.mm.out", "aten.addmm.out")
"""Linear layers."""

_SPACE_AND_TIME = 5
"""Dimensions of what is convolved over space and time."""


@dataclass(frozen=True)
class GemmSelection:
    """A graph with the fastest implementation of each call.

    Attributes:
        graph: with other nodes in place of calls.
        backends: who generates each loop, by the name of the node.
        decisions: what was chosen, and what was refused, with reasons.
        milliseconds: of the calls that were timed, all together, as they are done now.
        reductions: names of reductions that are begun in the kernel of the GEMM whose results they read.
        calls: what was decided of each node that does the work of a call, by its name.
        kernels: the configurations of the kernels that were timed, by their digests.
    """

    graph: Graph
    backends: Mapping[str, Backend]
    decisions: tuple[Decision, ...]
    milliseconds: float = 0.0
    reductions: frozenset[str] = frozenset()
    calls: Mapping[str, TuningDecision] = field(default_factory=dict)
    kernels: Mapping[str, TuningDecision] = field(default_factory=dict)

    def schedule(self, tuner: Tuner, unfused: Sequence[Unfused] = ()) -> Schedule:
        """Schedule the graph, `with_choices`."""
        found = schedule_graph(
            self.graph,
            tuner.settings,
            tuner.backends,
            self.backends,
            unfused,
            self.reductions,
            tuner.fusion_rules,
        )
        return self.with_choices(found)

    def with_choices(self, schedule: Schedule) -> Schedule:
        """A schedule of the graph whose launches and calls carry what was decided of them."""
        return replace(schedule, steps=tuple(map(self._with_choice, schedule.steps)))

    def _with_choice(self, step: Launch | Call) -> Launch | Call:
        if isinstance(step, Call):
            return replace(step, choice=self.calls.get(step.node.name))
        if not any(node.name in self.calls for node in step.nodes):
            return step
        # a kernel that fused otherwise than the one that was timed is still open
        choice = self.kernels.get(ir_digest(step.kernel))
        return step if choice is None else replace(step, choice=choice)


def choose_gemms(graph: Graph, claimed: Mapping[str, Backend], tuner: Tuner) -> GemmSelection:
    """Decide for every call of a graph who does it. `claimed`: who generates each of its loops."""
    wanted = tuner.settings.gemm
    as_eager = wanted == "known" and tuner.settings.numerics == "eager"  # another library rounds otherwise
    if wanted == "library" or as_eager:
        return GemmSelection(graph, claimed, ())
    decisions: list[Decision] = []
    written_out = _selection(graph, claimed, _depthwise(tuner, graph, decisions))
    graph, claimed = written_out.graph, written_out.backends
    packs = wanted in ("known", "generated") or not tuner.settings.freezing
    if packs and graph.kind == "inference":
        generated = _selection(graph, claimed, _convolutions(tuner, graph, decisions, wanted == "known"))
        graph, claimed = generated.graph, generated.backends
    if wanted == "known":
        return _selection(graph, claimed, _known(tuner, graph, decisions), decisions)
    if wanted == "generated":
        found = tunable_calls(graph, tuner.backends, decisions, timed=False)
        first = {tunable.call.name: tunable.generated[0].replacement for tunable in found}
        return _selection(graph, claimed, _accepted(tuner, graph, claimed, first, decisions), decisions)
    try:
        return _fastest(tuner, graph, claimed, decisions)
    except Exception as error:
        if tuner.settings.strict:
            raise
        reason = f"{type(error).__name__}: {error}"
        warn_once("autotune", f"libraries do all calls, because timing failed ({reason})", key=reason)
        return GemmSelection(graph, claimed, tuple(decisions))


def _selection(
    graph: Graph,
    claimed: Mapping[str, Backend],
    replacements: Mapping[str, Replacement],
    decisions: Sequence[Decision] = (),
) -> GemmSelection:
    """`graph` with some calls replaced."""
    backends = {
        node.name: item.backend
        for item in replacements.values()
        if item.backend is not None
        for node in item.nodes
    }
    begun = frozenset(name for item in replacements.values() for name in item.reductions)
    changed = replace_calls(graph, replacements)
    return GemmSelection(changed, {**claimed, **backends}, tuple(decisions), reductions=begun)


def _known(tuner: Tuner, graph: Graph, decisions: list[Decision]) -> Mapping[str, Replacement]:
    """What is known to be faster than the library, by the bytes that are moved or by plugins that know this
    machine; nothing is timed.
    """
    ask = tuner.choices(graph, decisions, known=True)
    offers: dict[str, Sequence[Alternative]] = {}
    narrow: dict[str, Replacement] = {}
    for node in graph.nodes:
        if not isinstance(node, TemplateCall):
            continue
        device_type = _device(graph, node).partition(":")[0]
        backend = _first(tuner, device_type)
        item = narrow_gemm(graph, node, backend, decisions)
        linear = _preferred_linear(tuner, graph, node, backend, decisions) if item is None else None
        if linear is not None:
            narrow[node.name] = linear.replacement
            packed = ", whose weight is packed once," if linear.before else ""
            why = f"its kernel{packed} is known to be faster here"
            decisions.append(Decision("choice", node.name, linear.name, why))
        elif item is None:
            offers[node.name] = ask(node, device_type)
        else:
            narrow[node.name] = item.replacement
            how = "an operand as it is stored" if item.removed else "its matrix at the memory's rate"
            why = f"it reads {how}"
            decisions.append(Decision("choice", node.name, item.name, why))
    chosen = within_room(graph, offers, decisions)
    return narrow | {call: item.replacement for call, item in chosen.items()}


def _preferred_linear(
    tuner: Tuner, graph: Graph, call: TemplateCall, backend: Backend | None, decisions: list[Decision]
) -> GeneratedGemm | None:
    """The product of two matrices that a backend prefers to generate: with `freezing`, with a parameter that
    is packed once; else if the backend reads it as it is.
    """
    if backend is None or graph.kind != "inference" or call.op not in _LINEAR:
        return None
    if type(backend).preferred_gemm is Backend.preferred_gemm:
        return None
    try:
        loops = gemm_loops(call, graph.buffers)
        if not backend.preferred_gemm(loops.gemm, graph.symbol_hints):
            if not tuner.settings.freezing:
                return None  # what the library does without an option needs no reason
            raise Unavailable("not known to be faster here")
        item = _generated_linear(tuner, graph, call, loops, backend)
    except Unavailable as error:
        decisions.append(Decision("declined", call.name, backend.name, str(error)))
        return None
    return item if all(map(backend.claims, item.form.nodes)) else None


def _generated_linear(
    tuner: Tuner, graph: Graph, call: TemplateCall, loops: GemmLoops, backend: Backend
) -> GeneratedGemm:
    """A linear layer by a backend.

    Raises:
        Unavailable: its weight has to be packed, and cannot be.
    """
    unpacked = not backend.prepacks_gemm(loops.gemm, graph.symbol_hints)
    if tuner.settings.freezing:
        try:
            return packed_gemm(graph, call, loops, backend, fixed_inputs(graph))
        except Unavailable:
            if not unpacked:
                raise
    if unpacked:
        return GeneratedGemm(backend.name, backend, loops)
    raise Unavailable("it is faster only with a packed weight, which takes the option freezing")


def _depthwise(tuner: Tuner, graph: Graph, decisions: list[Decision]) -> Mapping[str, Replacement]:
    """The depthwise convolutions that backends generate, where they say that their loops are faster: in
    training those of lines.
    """
    found: dict[str, Replacement] = {}
    static, freezing = fixed_inputs(graph), tuner.settings.freezing
    for node in graph.nodes:
        if not isinstance(node, TemplateCall) or node.op != "aten.convolution.default":
            continue
        if node.args[8] == 1 or (graph.kind != "inference" and not of_lines(node)):  # groups
            continue
        device = _device(graph, node)
        backend = _first(tuner, device.partition(":")[0])
        if backend is None or not backend.target_info(device).depthwise_loops:
            continue
        try:
            margin = margin_of(node, graph)
            loops = depthwise_loops(node, graph.buffers, margin, read_of_lines(node, graph))
        except Unavailable as error:
            decisions.append(Decision("declined", node.name, backend.name, str(error)))
            continue
        if all(map(backend.claims, loops.nodes)):
            gone = () if margin is None else (margin.node,)
            nodes = with_taps_once(graph, node, loops, static) if freezing else loops.nodes
            found[node.name] = Replacement(nodes, loops.made, removed=gone, backend=backend)
            why = "its loops are known to be faster here"
            decisions.append(Decision("choice", node.name, backend.name, why))
    return found


def _convolutions(
    tuner: Tuner, graph: Graph, decisions: list[Decision], plain: bool
) -> Mapping[str, Replacement]:
    """The convolutions of images with channels last that the first backend prefers to generate: those with
    windows of 1x1 as they are (with freezing, as the backend wants them), others with their weights packed
    once, as far as there is room.

    Args:
        plain: whether to take those as well that are generated as they are. Where calls are timed, these are
            timed; weights that are packed without freezing are not among what is.
    """
    found: dict[str, Replacement] = {}
    packed: dict[str, Sequence[Alternative]] = {}
    static, generated = fixed_inputs(graph), tuner.settings.gemm == "generated"
    for node in graph.nodes:
        if not isinstance(node, TemplateCall) or not _is_dense(node, graph):
            continue
        backend = _first(tuner, _device(graph, node).partition(":")[0])
        if backend is None or type(backend).preferred_gemm is Backend.preferred_gemm:
            continue
        try:
            loops = gemm_loops(node, graph.buffers)
            if not (generated or backend.preferred_gemm(loops.gemm, graph.symbol_hints)):
                raise Unavailable("not known to be faster here")
            item = _generated_convolution(tuner, graph, node, loops, backend, static)
        except Unavailable as error:
            decisions.append(Decision("declined", node.name, backend.name, str(error)))
            continue
        if not all(map(backend.claims, item.form.nodes)):
            continue
        if item.before:
            packed[node.name] = [Alternative(item.name, item.replacement)]
            continue
        if not plain:
            continue
        found[node.name] = item.replacement
        why = "its kernel is known to be faster here"
        decisions.append(Decision("choice", node.name, backend.name, why))
    chosen = within_room(graph, packed, decisions, bounded=not generated)
    return found | {call: item.replacement for call, item in chosen.items()}


def _generated_convolution(
    tuner: Tuner, graph: Graph, call: TemplateCall, loops: GemmLoops, backend: Backend, static: frozenset[str]
) -> GeneratedGemm:
    """A convolution by a backend, with its weight packed once where that is faster.

    Raises:
        Unavailable: it has to be packed, and cannot be.
    """
    plain, freezing = GeneratedGemm(backend.name, backend, loops), tuner.settings.freezing
    pointwise, always = _is_pointwise(call), freezing or tuner.settings.gemm == "generated"
    if pointwise and not always:  # each call would have to look whether the weight changed
        return plain
    if (pointwise or not always) and not backend.prepacks_gemm(loops.gemm, graph.symbol_hints):
        return plain
    if not backend.packed_width(loops.gemm):
        return plain
    try:
        return packed_gemm(graph, call, loops, backend, static, freezing)
    except Unavailable:
        # rows of a matrix are contiguous; under a window they are gathered number by number
        if not pointwise:
            raise
        return plain


def _is_dense(call: TemplateCall, graph: Graph) -> bool:
    """Whether a call convolves images with channels last, several of them for each channel of the result."""
    if call.op != "aten.convolution.default" or len(call.outputs) != 1:
        return False
    image, weight, transposed, groups = call.args[0], call.args[1], call.args[6], call.args[8]
    if transposed or not isinstance(image, View) or not isinstance(weight, View):
        return False
    if groups == weight.size[0] != 1:
        return False
    # torch's convolutions over space and time give channels second, as those of one channel do: there, a
    # kernel stores what reads their results wants
    one = image.size[1] == 1
    last = graph.buffers[call.outputs[0]].stride[1] == 1 or one or len(image.size) == _SPACE_AND_TIME
    return last and (image.stride[1] == 1 or one)


def _is_pointwise(call: TemplateCall) -> bool:
    """Whether a convolution takes each pixel by itself."""
    return all(n == 1 for n in call.args[1].size[2:]) and not any(call.args[4])


def _device(graph: Graph, call: TemplateCall) -> str:
    return next((graph.buffers[name].device for name in call.writes()), "cpu")


def _first(tuner: Tuner, device_type: str) -> Backend | None:
    """The first backend for a device; the others are not even loaded."""
    return next(iter(tuner.backends(device_type)), None)


def _accepted(
    tuner: Tuner,
    graph: Graph,
    claimed: Mapping[str, Backend],
    replacements: Mapping[str, Replacement],
    decisions: list[Decision],
) -> Mapping[str, Replacement]:
    """`replacements` without the reductions that their backends do not generate with the GEMM after all."""
    selection = _selection(graph, claimed, replacements)
    if not selection.reductions:
        return replacements
    refused = _refused_reductions(tuner, selection.schedule(tuner), decisions)
    return {
        call: replace(item, reductions=() if refused.keys() & set(item.reductions) else item.reductions)
        for call, item in replacements.items()
    }


def _refused_reductions(tuner: Tuner, schedule: Schedule, decisions: list[Decision]) -> Mapping[str, str]:
    """The reductions begun in kernels that their backends do not generate as a whole, with the reasons, which
    become decisions too.
    """
    found: dict[str, str] = {}
    for step in schedule.steps:
        names = [reduction_of(n) for n in step.nodes if is_group_store(n)] if isinstance(step, Launch) else []
        if not isinstance(step, Launch) or not names:
            continue
        try:
            tuner.backend(step.backend).configs(step.kernel)
        except UnsupportedError as error:
            found |= dict.fromkeys(names, str(error))
            decisions += [Decision("declined", name, step.backend, str(error)) for name in names]
    return found


def _fastest(
    tuner: Tuner, graph: Graph, claimed: Mapping[str, Backend], decisions: list[Decision]
) -> GemmSelection:
    """The graph with what is fastest for each call."""
    tasks = gemm_tasks(tuner, graph, claimed, decisions)
    if not tasks:
        return GemmSelection(graph, claimed, tuple(decisions))
    records = tuner.search(tasks.values())
    replacements: dict[str, Replacement] = {}
    calls: dict[str, TuningDecision] = {}
    kernels: dict[str, TuningDecision] = {}
    total = 0.0
    for call, task in tasks.items():
        record = records[task.key]
        best = record.best
        why = f"{record.about}: {trials_text(record)}" if record.trials else "nothing was timed"
        if best is None and tuner.exhausted:
            why = "the time for autotuning is used up (`max_autotune_seconds`)"
        candidate = best.candidate if best is not None else Candidate(LIBRARY)
        decision = TuningDecision(call, candidate, record.trials, why)
        decisions.append(decision.row("choice"))
        trial = record.of(candidate)
        total += trial.milliseconds if trial is not None else 0.0
        replacement, kernel = task.replacement(candidate), task.kernel(candidate)
        calls[call] = decision
        if replacement is not None:
            replacements[call] = replacement
            calls |= {node.name: decision for node in replacement.nodes}
            if kernel is not None and replacement.backend is not None:
                own = Candidate(replacement.backend.name, candidate.config)
                kernels[ir_digest(kernel)] = replace(decision, candidate=own)
    selection = _selection(graph, claimed, replacements, decisions)
    return replace(selection, milliseconds=total, calls=calls, kernels=kernels)


def gemm_tasks(
    tuner: Tuner, graph: Graph, claimed: Mapping[str, Backend], decisions: list[Decision]
) -> dict[str, GemmTask]:
    """For each call that can be done in several ways, what is to be timed; every refusal becomes a decision.

    Args:
        claimed: who generates each loop of the graph.
    """
    choices, static = tuner.choices(graph, decisions), tuner.frozen_parameters(graph)
    backends = lambda device_type: filter(tuner.takes_part, tuner.backends(device_type))  # noqa: E731
    found = tunable_calls(graph, backends, decisions, choices, timed=True, static=static)
    return _tasks(tuner, graph, claimed, found, decisions) if found else {}


def _tasks(
    tuner: Tuner,
    graph: Graph,
    claimed: Mapping[str, Backend],
    found: Sequence[TunableCall],
    decisions: list[Decision],
) -> dict[str, GemmTask]:
    """A task for each call: the schedules with the library and with each implementation say what they run."""
    library = GemmSelection(graph, claimed, ()).schedule(tuner)
    tried = {tunable.call.name: tunable.replacements for tunable in found}
    others: dict[str, Schedule] = {}
    refused: set[str] = set()
    for name in sorted({name for replacements in tried.values() for name in replacements}):
        used = {call: replacements[name] for call, replacements in tried.items() if name in replacements}
        others[name] = _selection(graph, claimed, used).schedule(tuner)
        refused |= _refused_reductions(tuner, others[name], decisions).keys()
    return {
        tunable.call.name: GemmTask(
            tuner,
            tunable,
            implementations_of(tunable, tried, library, others, refused),
            graph.symbol_hints,
        )
        for tunable in found
    }
