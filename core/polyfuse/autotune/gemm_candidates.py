"""What may do the calls of a graph besides the library that torch calls: GEMMs that backends generate, also
with what makes their operands, with a parameter that is packed once, and with reductions in their epilogue;
and what plugins have choices for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from polyfuse.autotune.alternatives import Alternative, Replacement, site_of
from polyfuse.base.log import get_logger
from polyfuse.ir.expr import load
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, ExternCall, Node, Pointwise, Reduction, TemplateCall
from polyfuse.lowering.reductions.depthwise import DepthwiseLoops
from polyfuse.lowering.reductions.gemm_loops import GemmLoops, Unavailable, gemm_loops
from polyfuse.lowering.reductions.gemm_narrow import inner_products, matvec, reading_less
from polyfuse.lowering.reductions.gemm_prologue import with_prologue
from polyfuse.lowering.reductions.gemm_split import columns_beside, split_depth, widened
from polyfuse.lowering.reductions.gemm_transposed import with_rows_transposed
from polyfuse.plugin import Backend, CallSite
from polyfuse.schedule import Decision
from polyfuse.schedule.reductions.gemm_reductions import Readers, epilogue_reductions, readers_of
from polyfuse.symbolic import (
    IndexLike,
    axis,
    axis_name,
    axis_size,
    coefficient,
    contiguous_strides,
    free_axes,
)

_log = get_logger("autotune")

PROLOGUE = "+prologue"
"""After a backend's name: its kernel computes operands too."""

PACKED = "+packed"
"""After a backend's name: its kernel reads a parameter that was packed for it once."""

REDUCTIONS = "+reductions"
"""After a backend's name: its epilogue begins reductions over its results."""

MATVEC = "+matvec"
"""After a backend's name: its kernel is the sum of products that a GEMM with one row is."""

SPLIT = "+split"
"""After a backend's name: its kernels have a part of the depth each."""

_PACK = "aten.as_strided_copy.default"
_FEW_NUMBERS = 2048
"""Numbers of a parameter that a loop packs at each call in less time than a call takes that compares them."""

_OF_IMAGES = 4
"""Dimensions of a weight whose windows have two."""


@dataclass(frozen=True)
class GeneratedGemm:
    """A matmul or convolution that a backend generates.

    Attributes:
        name: the backend's; with a mark, where it is a variant.
        backend: who generates it.
        form: the loops.
        removed: names of nodes whose work they do too.
        before: what makes what they read: calls, once for each parameter, or loops.
        buffers: what these write.
        reductions: names of reductions over its results that its epilogue begins.
        parts: into how many the depth is split.
    """

    name: str
    backend: Backend
    form: GemmLoops
    removed: tuple[str, ...] = ()
    before: tuple[ExternCall | Pointwise, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    reductions: tuple[str, ...] = ()
    parts: int = 1

    @property
    def replacement(self) -> Replacement:
        """What is done instead of the call."""
        form = self.form
        nodes, buffers = (*self.before, *form.nodes), (*self.buffers, form.accumulator)
        if self.parts > 1:
            split = split_depth(form, self.parts)
            nodes, buffers = (*self.before, *split.nodes), (*self.buffers, split.buffer)
        return Replacement(
            nodes, buffers, removed=self.removed, backend=self.backend, reductions=self.reductions
        )


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

    @property
    def replacements(self) -> dict[str, Replacement]:
        """What may be done instead, by the name of the implementation."""
        found = {item.name: item.replacement for item in self.generated}
        return found | {item.name: item.replacement for item in self.alternatives}


def tunable_calls(
    graph: Graph,
    backends: Callable[[str], Iterable[Backend]],
    decisions: list[Decision],
    choices: Callable[[TemplateCall, str], Sequence[Alternative]] | None = None,
    *,
    timed: bool,
    static: frozenset[str] = frozenset(),
) -> list[TunableCall]:
    """The calls of `graph` that can be done in other ways; every refusal becomes a decision.

    Args:
        backends: usable ones for a device type, in the order in which they are asked.
        choices: what plugins offer for a call on a device type.
        timed: ask only backends that may be faster than a library (`Backend.autotunes_gemm`), and also for
            variants.
        static: names of the parameters that may be packed once.
    """
    found: list[TunableCall] = []
    readers: Readers = readers_of(graph)
    for node in graph.nodes:
        if not isinstance(node, TemplateCall):
            continue
        device = next((graph.buffers[name].device for name in node.writes()), "cpu")
        device_type = device.partition(":")[0]
        generated: tuple[GeneratedGemm, ...] = ()
        try:
            form = gemm_loops(node, graph.buffers)
            asked = [b for b in backends(device_type) if b.autotunes_gemm or not timed]
            of = _Candidates(graph, node, form, readers, decisions)
            generated = tuple(item for b in asked for item in of.generated(b, timed, static))
        except Unavailable as error:
            decisions.append(Decision("declined", node.name, "", str(error)))
        others = tuple(choices(node, device_type)) if choices is not None else ()
        if generated or others:
            found.append(TunableCall(node, device, generated, others))
    return found


def packed_gemm(
    graph: Graph,
    call: TemplateCall,
    form: GemmLoops,
    backend: Backend,
    static: frozenset[str],
    freezing: bool = True,
) -> GeneratedGemm:
    """A GEMM by a backend whose right operand is a parameter that is packed once for it.

    Args:
        static: names of the parameters that may be packed.
        freezing: whether the option is set; without it, each call looks at the parameter's numbers, too.

    Raises:
        Unavailable: it is none, or cannot be packed so.
    """
    width = backend.packed_width(form.gemm)
    if not width:
        raise Unavailable("the backend reads its right operand as it is")
    site = site_of(graph, call, freezing, static, packing=not freezing)
    loops, pack, buffer = _packed(site, form, width, _steps_beside(backend, form))
    return GeneratedGemm(f"{backend.name}{PACKED}", backend, loops, (), (pack,), (buffer,))


def _steps_beside(backend: Backend, form: GemmLoops) -> int:
    """Steps of the depth that lie side by side in a packed operand for each column."""
    paired = backend.target_info(form.accumulator.device).paired_types
    return 2 if form.gemm.values[1].dtype in paired else 1


def with_taps_once(
    graph: Graph, call: TemplateCall, loops: DepthwiseLoops, static: frozenset[str]
) -> tuple[Node, ...]:
    """The nodes of a depthwise convolution with `freezing`: where its weight is a whole parameter (`static`:
    their names), it is laid out once, not by a loop at each call.
    """
    site, weight = site_of(graph, call, True, static), call.args[1]
    if len(weight.size) != _OF_IMAGES or not site.can_precompute(weight):
        return loops.nodes
    (first, convolution), (laid_out,) = loops.nodes, loops.made
    arguments = (laid_out.size, (*weight.stride[2:], weight.stride[1], weight.stride[0]))
    return site.precompute(first.name, _PACK, weight, arguments, laid_out), convolution


def narrow_gemm(
    graph: Graph, call: TemplateCall, backend: Backend | None, decisions: list[Decision]
) -> GeneratedGemm | None:
    """The GEMM by a backend that reads an operand as it is stored (`reading_less`), as the sum of products
    that it is with one row (`matvec`), or with its depth split (`Backend.streaming_parts`), if that pays.
    """
    if backend is None:
        return None
    try:
        form = gemm_loops(call, graph.buffers)
    except Unavailable:
        return None
    narrow = reading_less(graph, call, form, backend.narrow_weight_rows)
    if narrow is not None:
        loops, info = narrow.loops, backend.target_info(form.accumulator.device)
        turned = with_rows_transposed(loops, info, graph.buffers)
        loops = loops if turned is None else turned.form
        parts = _parts(loops, backend, _beside(graph, call, form, backend))
        name = f"{backend.name}{PROLOGUE}{SPLIT if parts > 1 else ''}"
        item = GeneratedGemm(name, backend, loops, narrow.removed, parts=parts)
        if turned is not None:
            item = replace(item, before=(turned.copy,), buffers=(turned.buffer,))
    else:
        streamed = _streamed(graph, form, backend, _beside(graph, call, form, backend))
        if streamed is None:
            return None
        item = streamed
    refused = _Candidates(graph, call, item.form, {}, decisions).refuses(backend, item.name, item.form)
    return None if refused else item


def _streamed(graph: Graph, form: GemmLoops, backend: Backend, columns: int = 0) -> GeneratedGemm | None:
    """A GEMM with few rows by a backend that reads its weight at the memory's rate; `columns`: of all that
    are launched with it.
    """
    loops = matvec(graph, form) if backend.streams_matvec else None
    if loops is not None:
        return GeneratedGemm(f"{backend.name}{MATVEC}", backend, loops)
    parts = _asked(backend, form.gemm, columns)
    if parts < 1:
        return None
    if parts == 1:
        return GeneratedGemm(backend.name, backend, form)
    try:
        split_depth(form, parts)
    except Unavailable:
        return None
    return GeneratedGemm(f"{backend.name}{SPLIT}", backend, form, parts=parts)


def _asked(backend: Backend, gemm: Reduction, columns: int) -> int:
    """Into how many parts a backend splits the depth; `columns`: of all that are launched together, 0 for one
    alone. What would be split alone is split, too: what follows it would otherwise be a part of its kernel,
    and a kernel that waits for others is launched by itself.
    """
    alone = backend.streaming_parts(gemm)
    if not columns or alone < 2:
        return alone
    return min(alone, max(2, backend.streaming_parts(widened(gemm, columns))))


def _beside(graph: Graph, call: TemplateCall, form: GemmLoops, backend: Backend) -> int:
    """Columns of all GEMMs that are launched with one, where launches are dear (`Backend.may_group`)."""
    if not backend.target_info(form.accumulator.device).launch_bytes:
        return 0
    return columns_beside(graph, call, form.gemm)


def _parts(form: GemmLoops, backend: Backend, columns: int) -> int:
    """Into how many parts the depth of a GEMM that converts its weight is split: 1 for none."""
    parts = _asked(backend, form.gemm, columns) if form.gemm.kind == "dot" else 1
    try:
        if parts > 1:
            split_depth(form, parts)
    except Unavailable:
        return 1
    return max(1, parts)


@dataclass(frozen=True)
class _Candidates:
    """What backends generate for one call."""

    graph: Graph
    call: TemplateCall
    loops: GemmLoops
    readers: Readers
    decisions: list[Decision]

    def generated(self, backend: Backend, timed: bool, static: frozenset[str]) -> Iterator[GeneratedGemm]:
        """What a backend generates; where it is timed, also with what makes its operands, and with a
        parameter that is packed once.
        """
        sums = inner_products(self.loops)
        if sums is not None:
            # nothing is read twice, so there is nothing that tiles would save
            if not self.refuses(backend, backend.name, sums):
                yield GeneratedGemm(backend.name, backend, sums)
            return
        if self.refuses(backend, backend.name, self.loops):
            return
        plain = GeneratedGemm(backend.name, backend, self.loops)
        reduced = self._with_reductions(plain)
        if timed or not reduced:
            yield plain
        yield from reduced
        if not timed:
            return
        streamed = _streamed(self.graph, self.loops, backend)
        if streamed is not None and streamed.name != plain.name:
            if not self.refuses(backend, streamed.name, streamed.form):
                yield streamed
        more = with_prologue(self.graph, self.call, self.loops)
        if more is not None:
            name, (larger, removed) = f"{backend.name}{PROLOGUE}", more
            if not self.refuses(backend, name, larger):
                yield GeneratedGemm(name, backend, larger, removed)
        if static:
            yield from self._with_packed(backend, static)

    def _with_reductions(self, plain: GeneratedGemm) -> list[GeneratedGemm]:
        """A GEMM whose epilogue begins the reductions over its results, if there are any."""
        name, loops = f"{plain.name}{REDUCTIONS}", plain.form
        if type(plain.backend).epilogue_reduction_width is Backend.epilogue_reduction_width:
            return []
        try:
            found = epilogue_reductions(
                self.graph, self.readers, loops.gemm, loops.finish.output, plain.backend, self.decisions
            )
        except Exception as error:
            self._raised(name, error)
            return []
        return [replace(plain, name=name, reductions=found)] if found else []

    def _with_packed(self, backend: Backend, static: frozenset[str]) -> Iterator[GeneratedGemm]:
        """A GEMM whose right operand is packed once as the backend wants it, if it wants that."""
        name = f"{backend.name}{PACKED}"
        try:
            yield packed_gemm(self.graph, self.call, self.loops, backend, static)
        except Unavailable as error:
            self.decisions.append(Decision("declined", self.call.name, name, str(error)))
        except Exception as error:
            self._raised(name, error)

    def refuses(self, backend: Backend, name: str, loops: GemmLoops) -> bool:
        """Whether a backend does not generate some loops; the reason becomes a decision."""
        for node in loops.nodes:
            answer = backend.claims(node)
            if not answer:
                reason = getattr(answer, "reason", "no reason given")
                self.decisions.append(Decision("declined", self.call.name, name, reason))
                return True
        return False

    def _raised(self, name: str, error: Exception) -> None:
        _log.info("%s raised %r over %s", name, error, self.call.name)
        self.decisions.append(
            Decision("declined", self.call.name, name, f"it raised {type(error).__name__}: {error}")
        )


def _packed(
    site: CallSite, form: GemmLoops, width: int, group: int
) -> tuple[GemmLoops, ExternCall | Pointwise, Buffer]:
    """`form` with its right operand packed: in blocks of so many columns, those of one step of the depth side
    by side; of a group of steps, those of each column. Also the call that packs it, and where to.

    Raises:
        Unavailable: the operand cannot be packed once, or not so.
    """
    left, right = form.gemm.values
    if right.op != "load" or right.args:
        raise Unavailable("its right operand is computed")
    name, offset = right.buffer, right.index
    if name not in site.static:
        raise Unavailable("its right operand is no parameter")
    # steps that lie side by side in the left operand do so here
    loaded = left.index if left.op == "load" else 0
    own, shared = set(free_axes(offset)), set(free_axes(loaded))
    columns = [a for a in form.gemm.axes if axis_name(a) in own]
    groups = [a for a in columns[:-1] if axis_name(a) in shared]
    if len(columns) - len(groups) != 1:
        raise Unavailable("its right operand is no matrix")
    column = columns[-1]
    depth = sorted(form.gemm.raxes, key=lambda a: coefficient(loaded, axis_name(a)) == 1)
    count, across = axis_size(column), coefficient(offset, axis_name(column))
    steps = [axis_size(a) for a in depth]
    down = [coefficient(offset, axis_name(a)) or 0 for a in depth]
    if not all(isinstance(n, int) for n in (count, across, *steps, *down)):
        raise Unavailable("the size of its right operand is known only at run time")
    assert isinstance(count, int) and isinstance(across, int)
    # groups follow each other, whose columns then are as good as those of one matrix
    outer: IndexLike = 0
    total: IndexLike = count
    for a in reversed(groups):
        outer, total = outer + a * total, total * axis_size(a)
    plain: IndexLike = (outer + column) * across
    for a, n in zip(depth, down, strict=True):
        plain = plain + a * n
    if offset != plain:
        raise Unavailable("its right operand is a part of a parameter")
    if count % width:
        raise Unavailable(f"its {count} columns are no multiple of {width}")
    if steps[-1] % group:
        raise Unavailable(f"its depth is no multiple of {group}")
    inner = (width,) if group == 1 else (width, group)
    size = (total // width, *steps[:-1], steps[-1] // group, *inner)
    stride = contiguous_strides(size)
    source = site.buffers[name]
    packed = replace(source, name=f"{site.call.name}_packed", size=size, stride=stride, kind="temp")
    apart = (width * across, *down[:-1], down[-1] * group, across, down[-1])
    arguments = (size, apart[: len(size)])
    name_of_pack = f"{site.call.name}_pack"
    pack: ExternCall | Pointwise = site.precompute(name_of_pack, _PACK, source.view(), arguments, packed)
    if not site.freezing and prod(size) <= _FEW_NUMBERS:
        pack = _copied(name_of_pack, name, arguments, packed, site.call)
    where: IndexLike = (outer // width + column // width) * stride[0] + column % width * group
    *others, last = zip(depth, stride[1:], strict=False)
    for a, n in others:
        where = where + a * n
    where = where + (last[0] // group * last[1] + last[0] % group if group > 1 else last[0] * last[1])
    gemm = replace(form.gemm, raxes=tuple(depth), values=(left, load(packed.name, where, right.dtype)))
    return replace(form, gemm=gemm), pack, packed


def _copied(
    name: str,
    parameter: str,
    layout: tuple[Sequence[IndexLike], Sequence[IndexLike]],
    packed: Buffer,
    call: TemplateCall,
) -> Pointwise:
    """A loop that lays a parameter out, so many elements apart in each dimension of the result."""
    size, apart = layout
    assert packed.dtype is not None
    axes = tuple(axis(f"i{d}", n) for d, n in enumerate(size))
    source: IndexLike = 0
    target: IndexLike = 0
    for a, n, m in zip(axes, apart, packed.stride, strict=True):
        source, target = source + a * n, target + a * m
    value = load(parameter, source, packed.dtype)
    return Pointwise(name, axes, (), packed.name, target, value, origins=call.origins)
