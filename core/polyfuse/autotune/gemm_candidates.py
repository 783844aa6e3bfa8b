"""Matrix products whose right operand is a parameter: with freezing, a backend that lays such an operand out
in panels at each call may have it so from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from polyfuse.autotune.alternatives import Alternative, Replacement, site_of
from polyfuse.base.log import get_logger
from polyfuse.ir.expr import load
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, ExternCall, TemplateCall
from polyfuse.lowering.reductions.gemm_loops import GemmLoops, Unavailable, gemm_loops
from polyfuse.lowering.reductions.gemm_prologue import with_prologue
from polyfuse.plugin import Backend
from polyfuse.schedule import Decision
from polyfuse.schedule.reductions.gemm_reductions import Readers, foldable, readers_of
from polyfuse.symbolic import IndexLike, axis_name, axis_size, coefficient, free_axes

__all__ = [
    "REDUCTIONS",
    "GeneratedGemm",
    "TunableCall",
    "PACKED",
    "PROLOGUE",
    "PackedOperand",
    "offers",
    "with_packed_weights",
]

_log = get_logger("autotune")

_LAYS_OUT = "aten.as_strided_copy.default"


@dataclass(frozen=True)
class PackedOperand:
    """A product that reads its right operand panel after panel.

    Attributes:
        form: the loops.
        lays_out: the call that makes the panels, once for each parameter.
        buffer: where they are.
    """

    form: GemmLoops
    lays_out: ExternCall
    buffer: Buffer


def with_packed_weights(
    graph: Graph, call: TemplateCall, form: GemmLoops, width: int, kept: frozenset[str]
) -> PackedOperand:
    """`form` with its right operand in panels of so many columns: in each of them, those of one step of the
    depth stand side by side.

    Args:
        kept: names of the parameters whose layout may be kept.

    Raises:
        Unavailable: the operand cannot be laid out once, or not so.
    """
    left, right = form.product.values
    if right.op != "load" or right.args:
        raise Unavailable("its right operand is computed")
    name, place = right.buffer, right.index
    if name not in kept:
        raise Unavailable("its right operand is no parameter")
    own = set(free_axes(place))
    columns = [a for a in form.product.axes if axis_name(a) in own]
    if len(columns) != 1 or len(form.product.raxes) != 1:
        raise Unavailable("its right operand is no matrix")
    column, depth = columns[0], form.product.raxes[0]
    count, steps = axis_size(column), axis_size(depth)
    across, down = (coefficient(place, axis_name(a)) for a in (column, depth))
    if not all(isinstance(n, int) for n in (count, steps, across, down)):
        raise Unavailable("the size of its right operand is known only at run time")
    assert isinstance(count, int) and isinstance(steps, int)
    assert isinstance(across, int) and isinstance(down, int)
    if place != column * across + depth * down:
        raise Unavailable("its right operand is a part of a parameter")
    if count % width:
        raise Unavailable(f"its {count} columns are no panels of {width}")
    size = (count // width, steps, width)
    stride = (steps * width, width, 1)
    source = graph.buffers[name]
    panels = replace(source, name=f"{call.name}_panels", size=size, stride=stride, kind="temp")
    arguments = (size, (width * across, down, across))
    site = site_of(graph, call, True, kept)
    lays_out = site.once(f"{call.name}_lay_out", _LAYS_OUT, source.view(), arguments, panels)
    where: IndexLike = column // width * stride[0] + depth * width + column % width
    product = replace(form.product, values=(left, load(panels.name, where, right.dtype)))
    return PackedOperand(replace(form, product=product), lays_out, panels)


PROLOGUE = "+prologue"
"""After a backend's name: its kernel computes operands too."""

PACKED = "+panels"
"""After a backend's name: its kernel reads a parameter that was laid out for it once."""

REDUCTIONS = "+folds"
"""After a backend's name: its kernel begins reductions over its results."""

Backends = Callable[[str], Iterable[Backend]]


@dataclass(frozen=True)
class GeneratedGemm:
    """A product that a backend generates.

    Attributes:
        name: the backend's; with a mark, where the kernel computes its operands too.
        backend: who it is.
        form: the loops.
        removed: names of nodes whose work they do too.
        before: calls that make what they read, once for each parameter.
        buffers: what these write.
        folds: names of reductions over its results that its kernel begins.
    """

    name: str
    backend: Backend
    form: GemmLoops
    removed: tuple[str, ...] = ()
    before: tuple[ExternCall, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    folds: tuple[str, ...] = ()

    @property
    def taken(self) -> Replacement:
        """What takes the call's place."""
        form = self.form
        nodes, buffers = (*self.before, *form.nodes), (*self.buffers, form.accumulator)
        return Replacement(nodes, buffers, removed=self.removed, backend=self.backend, folds=self.folds)


@dataclass(frozen=True)
class TunableCall:
    """A call that can be done in other ways.

    Attributes:
        call: the library call.
        device: where its result is.
        generated: what backends generate, in the order in which they were asked.
        alternatives: what plugins' choices offer.
    """

    call: TemplateCall
    device: str
    generated: tuple[GeneratedGemm, ...]
    alternatives: tuple[Alternative, ...] = ()


def offers(
    graph: Graph,
    backends: Backends,
    decisions: list[Decision],
    choices: Callable[[TemplateCall, str], Sequence[Alternative]] | None = None,
    *,
    racing: bool,
    kept: frozenset[str] = frozenset(),
) -> list[TunableCall]:
    """The calls of `graph` that can be done in other ways; every refusal becomes a decision.

    Args:
        choices: what plugins offer for a call on a device type.
        kept: names of the parameters whose layout may be kept.
        racing: ask only backends that may be faster than a library (`Backend.autotunes_gemm`).
    """
    found: list[TunableCall] = []
    readers: Readers = readers_of(graph)
    for node in graph.nodes:
        if not isinstance(node, TemplateCall):
            continue
        device = next((graph.buffers[name].device for name in node.writes()), "cpu")
        device_type = device.partition(":")[0]
        willing: tuple[GeneratedGemm, ...] = ()
        try:
            form = gemm_loops(node, graph.buffers)
            willing = _willing(graph, node, form, backends(device_type), readers, decisions, racing, kept)
        except Unavailable as error:
            decisions.append(Decision("declined", node.name, "", str(error)))
        others = tuple(choices(node, device_type)) if choices is not None else ()
        if willing or others:
            found.append(TunableCall(node, device, willing, others))
    return found


def _willing(
    graph: Graph,
    call: TemplateCall,
    form: GemmLoops,
    backends: Iterable[Backend],
    readers: Readers,
    decisions: list[Decision],
    racing: bool,
    kept: frozenset[str],
) -> tuple[GeneratedGemm, ...]:
    """What backends generate for a product; in a race, also with what makes its operands, and with a
    parameter laid out once.
    """
    willing: list[GeneratedGemm] = []
    more = with_prologue(graph, call, form) if racing else None
    for backend in backends:
        if racing and not backend.autotunes_gemm:
            continue
        reason = _refusal(backend, form)
        if reason:
            decisions.append(Decision("declined", call.name, backend.name, reason))
            continue
        plain = GeneratedGemm(backend.name, backend, form)
        folding = _with_reductions(graph, call, plain, readers, decisions)
        willing += [plain, *folding] if racing else folding or [plain]
        if more is not None:
            name, (larger, removed) = f"{backend.name}{PROLOGUE}", more
            reason = _refusal(backend, larger)
            if reason:
                decisions.append(Decision("declined", call.name, name, reason))
            else:
                willing.append(GeneratedGemm(name, backend, larger, removed))
        willing += _with_packed(graph, call, form, backend, decisions, kept) if racing and kept else ()
    return tuple(willing)


def _with_reductions(
    graph: Graph, call: TemplateCall, plain: GeneratedGemm, readers: Readers, decisions: list[Decision]
) -> list[GeneratedGemm]:
    """A product whose kernel begins the reductions over its results, if there are any."""
    name, form = f"{plain.name}{REDUCTIONS}", plain.form
    if type(plain.backend).epilogue_reduction_width is Backend.epilogue_reduction_width:
        return []
    try:
        folds = foldable(graph, readers, form.product, form.finish.output, plain.backend, decisions)
    except Exception as error:
        _log.info("backend %r raised %r over reductions of %s", plain.name, error, call.name)
        decisions.append(Decision("declined", call.name, name, f"it raised {type(error).__name__}: {error}"))
        return []
    return [replace(plain, name=name, folds=folds)] if folds else []


def _with_packed(
    graph: Graph,
    call: TemplateCall,
    form: GemmLoops,
    backend: Backend,
    decisions: list[Decision],
    kept: frozenset[str],
) -> Iterator[GeneratedGemm]:
    """A product whose right operand is laid out once as the backend wants it, if it wants that."""
    name = f"{backend.name}{PACKED}"
    try:
        width = backend.packed_width(form.product)
        if width:
            found = with_packed_weights(graph, call, form, width, kept)
            yield GeneratedGemm(name, backend, found.form, (), (found.lays_out,), (found.buffer,))
    except Unavailable as error:
        decisions.append(Decision("declined", call.name, name, str(error)))
    except Exception as error:
        _log.info("backend %r raised %r over panels of %s", backend.name, error, call.name)
        decisions.append(Decision("declined", call.name, name, f"it raised {type(error).__name__}: {error}"))


def _refusal(backend: Backend, form: GemmLoops) -> str:
    """Why a backend does not generate a product; empty if it does."""
    for node in form.nodes:
        try:
            answer = backend.claims(node)
        except Exception as error:
            _log.info("backend %r raised %r over %s", backend.name, error, node.name)
            return f"it raised {type(error).__name__}: {error}"
        if not answer:
            return getattr(answer, "reason", "no reason given")
    return ""
