"""Split reductions: long ones with few results become two, partial results of many splits of the loop, and
their combination.

Otherwise a wide device would run them on a handful of its thread blocks. The outermost loops are split, so
that each split stays contiguous where the whole was. The splits are the same at every call, so the result is
too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from polyfuse.base.settings import Settings
from polyfuse.ir.expr import Expr, apply, const, guard, index_value, load, loads, reindex
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, Node, Pointwise, Reduction, Scan
from polyfuse.ir.ops import CONTRACTIONS, REDUCTIONS, identity
from polyfuse.ir.types import DType
from polyfuse.plugin import Backend, TargetInfo
from polyfuse.plugin.target_info import is_near, near_divisor
from polyfuse.schedule.reductions.column_moments import PART, Parts, deviations, moments_of_parts
from polyfuse.schedule.reductions.column_reductions import split_columns
from polyfuse.schedule.result import Decision
from polyfuse.symbolic import (
    Index,
    IndexLike,
    axis,
    axis_name,
    axis_size,
    coefficient,
    flat_index,
    product,
    substitute,
)

_COLUMNS = 16
"""Neighbouring columns at least that are read together: a whole cache line of numbers of 32 bits."""
_FEWEST_PARTS = 4
"""Parts of a column from which adding them up costs little."""
_CACHED = 4
"""Times `TargetInfo.column_bytes` up to which a matrix is still in the caches when it is read again."""
_ALIGNED = 64
"""Splits whose end is tested are multiples of this, so that all begin at an aligned address."""

SPLIT_SCANS: Mapping[str, str] = MappingProxyType({"sum": "add", "prod": "mul"})
"""Kinds of scans that can be split, with the operation that joins two parts."""


def split_reductions(
    graph: Graph,
    claimed: Mapping[str, Backend],
    target_info: Callable[[str, str], TargetInfo],
    hint: Callable[[IndexLike], int],
    decisions: list[Decision],
    settings: Settings,
) -> tuple[Graph, Mapping[str, Backend]]:
    """`graph` with its long reductions of few results split, as the backends' target info wants it, and who
    generates its loops. A reduction stays whole whose backend refuses one of the parts.

    Args:
        claimed: who generates the loops of `graph`, by the node's name.
        target_info: that of a backend, by its name, on a device.
        hint: example value of a size.
        decisions: gets an entry for each reduction that is split.
    """
    split = _Splitter(graph, claimed, target_info, hint)
    nodes: list[Node] = []
    done: set[str] = set()
    owners, buffers = dict(claimed), dict(graph.buffers)
    # sums may be made by adding to memory, which some kernels do in any order
    scatters = settings.deterministic != "on"
    for position, node in enumerate(graph.nodes):
        if node.name in done:
            continue
        found = split.split(position, scatters) if isinstance(node, (Reduction, Scan)) else None
        if found is None or not all(claimed[node.name].claims(part) for part in found.nodes):
            nodes.append(node)
            continue
        buffers |= split.buffers
        nodes.extend(found.nodes)
        owners |= {part.name: claimed[node.name] for part in found.nodes}
        done.update(found.partners)
        decisions.append(Decision("split", node.name, "+".join(found.partners), found.reason))
    return replace(graph, buffers=buffers, nodes=tuple(nodes)), owners


@dataclass(frozen=True)
class _Split:
    """What a reduction or scan becomes: nodes, why, and the names of other nodes whose work they do too."""

    nodes: tuple[Node, ...]
    reason: str
    partners: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Division:
    """How the loops of one reduction are split.

    Attributes:
        outer: axes that become parallel, one point for each split.
        inner: loop axes that are left.
        mapping: the original loop axes that changed, in terms of these.
        inside: whether a point exists; None where all do.
    """

    outer: tuple[Index, ...]
    inner: tuple[Index, ...]
    mapping: dict[str, IndexLike]
    inside: Expr | None


@dataclass
class _Splitter:
    """Splits the reductions of one graph. `buffers` are those of the last one."""

    graph: Graph
    claimed: Mapping[str, Backend]
    target_infos: Callable[[str, str], TargetInfo]
    hint: Callable[[IndexLike], int]
    buffers: dict[str, Buffer] = field(default_factory=dict)

    def split(self, position: int, scatters: bool) -> _Split | None:
        """What the reduction or scan at a position becomes; None where it stays whole."""
        node = self.graph.nodes[position]
        self.buffers = {}
        if isinstance(node, Scan):
            parts = self.scan(node)
            return _Split(parts, "splits of the scan keep the device busy") if parts else None
        assert isinstance(node, Reduction)
        moments = self.moments(node, position)
        if moments is not None:
            return moments
        columns = split_columns(self.graph, position, self.target_info(node)) if scatters else None
        if columns is not None:
            self.buffers.update(columns[1])
            return _Split(columns[0], "columns are added up in the kernel that reads the rows")
        division = self.division(node)
        if division is None:
            return None
        count = self.hint(product(axis_size(a) for a in division.outer))
        reason = f"{count} partial results keep the device busy"
        partner = _sum_of_exponentials(self.graph, position)
        if partner is not None:
            return _Split(self.softmax(node, partner, division), reason, (partner.name,))
        return _Split(self.parts(node, division), reason)

    def moments(self, node: Reduction, position: int) -> _Split | None:
        """The moments of columns that leave the caches before they are read again, from those of their parts;
        None where `node` is no part of such.
        """
        limit, rows = self.target_info(node).column_bytes, product(node.rsizes)
        if not limit or node.kind not in ("sum", "welford") or not isinstance(rows, int):
            return None
        read = rows * self.hint(product(node.sizes)) * node.values[0].dtype.itemsize
        if (
            rows < _FEWEST_PARTS * PART
            or read <= _CACHED * limit
            or self._contiguous_columns(node) < _COLUMNS
        ):
            return None
        others = deviations(self.graph, position)
        if not others and (node.kind == "sum" or node.outputs[2] or not all(node.outputs[:2])):
            return None
        how = self._divide(node, rows // PART)
        if how is None or how.inside is not None:
            return None
        count = self.hint(product(map(axis_size, how.outer)))
        parts = Parts(how.outer, how.inner, how.mapping, count, rows // count)
        made = moments_of_parts(node, others, parts, self._stored, partial(self._sums, how))
        reason = f"{count} parts of each column are read once"
        return _Split(made, reason, tuple(other.name for other in others))

    def division(self, node: Reduction) -> _Division | None:
        """How `node` is split; None where it stays whole."""
        if node.kind in CONTRACTIONS or (node.kind == "online_softmax" and "" in node.outputs):
            return None
        target_info = self.target_info(node)
        wanted = self._wanted(node, target_info) if target_info.blocks else 0
        return self._divide(node, wanted) if wanted > 1 else None

    def scan(self, node: Scan) -> tuple[Node, ...]:
        """The nodes that replace a scan; none where it stays whole."""
        extent, target_info = axis_size(node.raxes[0]), self.target_info(node)
        if target_info.scans_look_back and not self._contiguous_side(node):
            return ()
        wanted = self._wanted(node, target_info) if target_info.blocks and node.kind in SPLIT_SCANS else 0
        count = near_divisor(extent, wanted) if wanted > 1 and isinstance(extent, int) else 0
        device = self.graph.buffers[node.outputs[0]].device
        return scan_parts(node, count, partial(self._add_buffer, device)) if count else ()

    def parts(self, node: Reduction, how: _Division) -> tuple[Node, ...]:
        """The nodes that replace `node`."""
        first, loaded = self._partial(node, node.kind, how)
        if node.kind == "welford":
            return (first, *self._combine_moments(node, how.outer, loaded))
        if node.kind == "online_softmax":
            return (first, *self._combine_softmax(node, node.outputs, (node.index,) * 2, how.outer, loaded))
        return (first, replace(node, name=f"{node.name}_final", raxes=how.outer, values=loaded))

    def softmax(self, largest: Reduction, total: Reduction, how: _Division) -> tuple[Node, ...]:
        """The nodes that replace a maximum and the sum of exponentials below it: one read serves both."""
        first, loaded = self._partial(largest, "online_softmax", how)
        outputs, indices = (*largest.outputs, *total.outputs), (largest.index, total.index)
        origins = tuple(dict.fromkeys((*largest.origins, *total.origins)))
        first = replace(first, origins=origins)
        return (first, *self._combine_softmax(largest, outputs, indices, how.outer, loaded))

    def target_info(self, node: Reduction | Scan) -> TargetInfo:
        """The target info of the backend that generates this node's kernel."""
        device = self.graph.buffers[node.writes()[0]].device
        return self.target_infos(self.claimed[node.name].name, device)

    def _wanted(self, node: Reduction | Scan, target_info: TargetInfo) -> int:
        """How many splits keep the device busy, as far as they do not become too short."""
        rows = self.hint(product(node.sizes))
        length = self.hint(product(node.rsizes))
        side = self._contiguous_side(node)
        together = min(target_info.lanes, side) if side else 1
        return target_info.splits(max(1, -(-rows // together)), length * together)

    def _contiguous_side(self, node: Reduction | Scan) -> int:
        """The extent of the parallel axis along which the largest operand is contiguous; 0 if it is a loop
        axis.
        """
        best, extent = -1, 0
        for item in loads(*node.values):
            size = self.hint(self.graph.buffers[item.buffer].numel)
            if size > best:
                found = [a for a in node.axes if self._steps_by_one(item.index, a)]
                best, extent = size, self.hint(axis_size(found[0])) if found else 0
        return extent

    def _contiguous_columns(self, node: Reduction) -> int:
        """How many parallel points are neighbours in memory in the largest operand, along all axes."""
        read = loads(*node.values)
        if not read:
            return 0
        largest = max(read, key=lambda e: self.hint(self.graph.buffers[e.buffer].numel))
        steps: list[tuple[int, int]] = []
        for var in node.axes:
            step = coefficient(largest.index, axis_name(var))
            if step is not None and step != 0:
                steps.append((self.hint(step), self.hint(axis_size(var))))
        total = 1
        for step, size in sorted(steps):
            if step != total:
                break
            total *= size
        return total

    def _steps_by_one(self, index: IndexLike, var: Index) -> bool:
        step = coefficient(index, axis_name(var))
        return step is not None and self.hint(step) == 1

    def _divide(self, node: Reduction, wanted: int) -> _Division | None:
        """About `wanted` splits of the outermost loops."""
        outer: list[Index] = []
        rest = list(node.raxes)
        mapping: dict[str, IndexLike] = {}
        inside: Expr | None = None
        while wanted > 1 and rest:
            var = rest[0]
            extent = axis_size(var)
            if len(rest) > 1 and is_near(self.hint(extent), wanted):
                outer.append(rest.pop(0))
                wanted = -(-wanted // max(self.hint(extent), 1))
                continue
            count = near_divisor(extent, wanted) if isinstance(extent, int) else 0
            if count == 0 and node.kind == "welford":
                # a partial mean needs the number of its elements, which the last split has fewer of
                break
            count, length = (count, extent // count) if count else _cut(extent, wanted)
            split, step = axis("t0", count), axis("t1", length)
            outer.append(split)
            rest[0] = step
            mapping[axis_name(var)] = split * length + step
            if count * length != extent:
                test = index_value(split * length + step), index_value(extent)
                inside = apply("lt", *test)
            break
        return _Division(tuple(outer), tuple(rest), mapping, inside) if outer else None

    def _partial(self, node: Reduction, kind: str, how: _Division) -> tuple[Reduction, tuple[Expr, ...]]:
        """The node that makes the partial results, and the loads of these."""
        values = tuple(reindex(value, how.mapping) for value in node.values)
        if how.inside is not None:
            values = _confined(kind, values, how.inside)
        return self._partial_of(node, kind, how, values)

    def _stored(self, node: Pointwise) -> Expr:
        """The load of what a new node writes, whose buffer is made."""
        device = self.graph.buffers[loads(node.value)[0].buffer].device
        self._add_buffer(device, node.output, node.value.dtype, product(node.sizes))
        return load(node.output, node.index, node.value.dtype)

    def _sums(self, how: _Division, node: Reduction, value: Expr) -> tuple[Reduction, Expr]:
        """The node that sums a value over the elements of each part, and the load of what it writes."""
        made, (sums,) = self._partial_of(node, "sum", how, (value,))
        return made, sums

    def _partial_of(
        self, node: Reduction, kind: str, how: _Division, values: tuple[Expr, ...]
    ) -> tuple[Reduction, tuple[Expr, ...]]:
        """The same of values over the loops of a division."""
        device = self.graph.buffers[node.writes()[0]].device
        # splits outermost where rows are neighbours in memory, innermost where each row is by itself
        side = self._contiguous_side(node)
        axes = (*how.outer, *node.axes) if side else (*node.axes, *how.outer)
        index, extent = flat_index(axes), product(map(axis_size, axes))
        types = _result_types(kind, values)
        names = tuple(f"{node.name}_part{k}" for k in range(len(types)))
        for name, dtype in zip(names, types, strict=True):
            self._add_buffer(device, name, dtype, extent)
        made = Reduction(
            f"{node.name}_partial", axes, how.inner, names, index, kind, values, origins=node.origins
        )
        return made, tuple(load(name, index, dtype) for name, dtype in zip(names, types, strict=True))

    def _add_buffer(self, device: str, name: str, dtype: DType, extent: IndexLike) -> None:
        text = str(dtype.torch).removeprefix("torch.")
        self.buffers[name] = Buffer(name, dtype, device, (extent,), (1,), text)

    def _combine_moments(
        self, node: Reduction, outer: tuple[Index, ...], parts: tuple[Expr, ...]
    ) -> tuple[Node, ...]:
        """Mean, squared deviations and count of everything, from those of the splits."""
        mean, deviation, count = parts
        dtype = mean.dtype
        device = self.graph.buffers[node.writes()[0]].device
        shape = product(node.sizes)
        index = flat_index(node.axes)
        made: list[Node] = []

        def total(label: str, value: Expr, result: str = "") -> Expr:
            name, at = result or f"{node.name}_{label}", node.index if result else index
            if not result:
                self._add_buffer(device, name, dtype, shape)
            title = f"{node.name}_{label}"
            made.append(
                Reduction(title, node.axes, outer, (name,), at, "sum", (value,), origins=node.origins)
            )
            return load(name, at, dtype)

        mean_of, deviation_of, count_of = node.outputs
        whole = total("count", count, count_of)
        weighted = apply("div", apply("mul", mean, count), whole)
        centre = total("mean", weighted, mean_of)
        if deviation_of:
            away = apply("sub", mean, centre)
            spread = apply("mul", apply("mul", away, away), count)
            total("deviation", apply("add", deviation, spread), deviation_of)
        return tuple(made)

    def _combine_softmax(
        self,
        node: Reduction,
        outputs: tuple[str, ...],
        indices: tuple[IndexLike, IndexLike],
        outer: tuple[Index, ...],
        parts: tuple[Expr, ...],
    ) -> tuple[Node, ...]:
        """The maximum of everything, and the sum of exponentials below it."""
        largest, total = parts
        first, second = (
            Reduction(
                f"{node.name}_{label}", node.axes, outer, (output,), index, kind, (), origins=node.origins
            )
            for label, output, index, kind in zip(
                ("largest", "total"), outputs, indices, ("max", "sum"), strict=True
            )
        )
        below = apply("exp", apply("sub", largest, load(outputs[0], indices[0], largest.dtype)))
        # a split of negative infinities alone has no sum of its own
        empty = apply("eq", largest, const(float("-inf"), largest.dtype))
        share = apply("where", empty, const(0.0, total.dtype), apply("mul", total, below))
        return replace(first, values=(largest,)), replace(second, values=(share,))


def _sum_of_exponentials(graph: Graph, position: int) -> Reduction | None:
    """The later node that sums ``exp(x - maximum)`` where the node at `position` computes that maximum of
    `x`.
    """
    first = graph.nodes[position]
    if not isinstance(first, Reduction) or first.kind != "max":
        return None
    below = load(first.outputs[0], first.index, first.values[0].dtype)
    wanted = apply("exp", apply("sub", first.values[0], below)) if below.dtype.is_float else None
    read = {item.buffer for item in loads(first.values[0])}
    for node in graph.nodes[position + 1 :]:
        if (
            isinstance(node, Reduction)
            and (node.kind, node.axes, node.raxes, node.values) == ("sum", first.axes, first.raxes, (wanted,))
            and graph.buffers[first.outputs[0]].dtype is below.dtype
        ):
            return node
        if not read.isdisjoint(node.writes()):
            return None
    return None


def _cut(extent: IndexLike, wanted: int) -> tuple[int, IndexLike]:
    """(number, length) of splits that cover `extent`, the last of them perhaps in part."""
    length = (extent + wanted - 1) // wanted
    if isinstance(length, int) and length > 4 * _ALIGNED:
        length = -(-length // _ALIGNED) * _ALIGNED
    return wanted, length


def _confined(kind: str, values: tuple[Expr, ...], inside: Expr) -> tuple[Expr, ...]:
    """`values` where `inside` holds; elsewhere what changes no result, and nothing is read."""
    first = guard(values[0], inside)
    neutral = const(identity(kind, first.dtype), first.dtype)
    return (apply("where", inside, first, neutral), *(guard(value, inside) for value in values[1:]))


def _result_types(kind: str, values: Sequence[Expr]) -> tuple[DType, ...]:
    if kind in ("argmin", "argmax"):
        return values[0].dtype, DType.i64
    return (values[0].dtype,) * REDUCTIONS[kind].results


def scan_parts(
    node: Scan, count: int, add_buffer: Callable[[str, DType, IndexLike], None]
) -> tuple[Node, ...]:
    """The nodes that replace a scan, for `count` equal splits: totals of the splits, their scan, and a scan
    within each split, which begins with what came before it.

    Args:
        add_buffer: makes a buffer of a name, a type and a number of elements.
    """
    (along,), (plain,) = node.raxes, node.values
    split, step = axis("t0", count), axis("t1", axis_size(along) // count)
    axes = (*node.axes, split)
    within: dict[str, IndexLike] = {axis_name(along): split * axis_size(step) + step}
    value, dtype = reindex(plain, within), plain.dtype
    here = flat_index(axes)
    total, start = f"{node.name}_totals", f"{node.name}_before"
    for name in (total, start):
        add_buffer(name, dtype, product((*node.sizes, count)))
    totals = Reduction(total, axes, (step,), (total,), here, node.kind, (value,), origins=node.origins)
    parts = (load(total, here, dtype),)
    starts = Scan(start, node.axes, (split,), (start,), here, node.kind, parts, origins=node.origins)
    zero = index_value(0)
    begins = apply("bitwise_and", apply("eq", index_value(step), zero), apply("gt", index_value(split), zero))
    carried = guard(load(start, here - 1, dtype), begins)
    joined = apply("where", begins, apply(SPLIT_SCANS[node.kind], carried, value), value)
    index = substitute(node.index, within)
    return totals, starts, replace(node, axes=axes, raxes=(step,), index=index, values=(joined,))
