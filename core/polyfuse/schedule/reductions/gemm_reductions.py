"""GEMM epilogue reductions: those over rows or columns of a GEMM's results, begun in its kernel.

The kernel of the GEMM combines groups of neighbouring results, and stores a partial result of each group
beside the results; a second kernel, an ordinary reduction, combines these. So nothing reads the results back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.expr import Expr, load, loads, moved, reindex, rewrite
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, Node, Pointwise, Reduction, Scatter
from polyfuse.ir.ops import CONTRACTIONS, GROUP_MODES
from polyfuse.ir.types import DType
from polyfuse.plugin import Backend
from polyfuse.schedule.fusion.gemm_epilogues import has_gemm
from polyfuse.schedule.fusion.units import Unit
from polyfuse.schedule.result import Decision
from polyfuse.symbolic import (
    Index,
    IndexLike,
    axis,
    axis_name,
    axis_size,
    flat_index,
    free_axes,
    product,
    unflattened,
)

_MODES = {kind: mode for mode, kind in GROUP_MODES.items()}
_PARTIAL = "_partial"


@dataclass(frozen=True)
class _Epilogue:
    """A reduction over results of a GEMM.

    Attributes:
        index: at which it reads the matrix of results.
        along: whether it is over the matrix's `"rows"` or its `"columns"`; empty: over something else.
    """

    gemm: Reduction
    reduction: Reduction
    index: IndexLike
    along: str


Readers = Mapping[str, Sequence[Pointwise | Reduction]]
"""The loops that read each buffer, in program order."""


def readers_of(graph: Graph) -> Readers:
    """Who reads each buffer of a graph: pointwise loops and reductions."""
    found: dict[str, list[Pointwise | Reduction]] = {}
    for node in graph.nodes:
        if isinstance(node, (Pointwise, Reduction)):
            for name in dict.fromkeys(item.buffer for item in loads(*node.expressions())):
                found.setdefault(name, []).append(node)
    return found


def epilogue_reductions(
    graph: Graph,
    readers: Readers,
    node: Reduction,
    results: str,
    backend: Backend,
    decisions: list[Decision],
) -> tuple[str, ...]:
    """The names of the reductions that a backend can begin in the kernel of a GEMM.

    Args:
        node: the GEMM.
        results: the buffer that gets its results.
        decisions: gets the reason why for each other one that reads them.
    """
    found: list[str] = []
    for epilogue in _epilogues(readers, node, results):
        answer = _divided(graph, epilogue, backend)
        if isinstance(answer, str):
            decisions.append(Decision("declined", epilogue.reduction.name, backend.name, answer))
        else:
            found.append(epilogue.reduction.name)
    return tuple(found)


def split_epilogue_reductions(
    graph: Graph, claimed: Mapping[str, Backend], names: frozenset[str], decisions: list[Decision]
) -> tuple[Graph, Mapping[str, Backend]]:
    """`graph` with some reductions begun in the kernels of GEMMs, and who generates which nodes, by name.

    Args:
        claimed: who generates the loops of `graph`, by name.
        names: of the reductions.
        decisions: gets an entry for each.
    """
    if not names:
        return graph, claimed
    owners = dict(claimed)
    parts: dict[str, tuple[Node, Node]] = {}
    buffers = dict(graph.buffers)
    readers = readers_of(graph)
    gemms = [n for n in graph.nodes if isinstance(n, Reduction) and n.kind in CONTRACTIONS]
    for epilogue in (epilogue for n in gemms for epilogue in _epilogues(readers, n, n.outputs[0])):
        name, backend = epilogue.reduction.name, claimed[epilogue.gemm.name]
        if name in parts or name not in names:
            continue
        answer = _divided(graph, epilogue, backend)
        if isinstance(answer, str):
            continue
        first, buffer, last = answer
        parts[name], buffers[buffer.name] = (first, last), buffer
        owners |= {first.name: backend, last.name: claimed[name]}
        decisions.append(Decision("split", name, epilogue.gemm.name, "begun where the results are computed"))
    nodes = tuple(part for node in graph.nodes for part in parts.get(node.name, (node,)))
    return replace(graph, nodes=nodes, buffers=buffers), owners


def detached_reductions(units: Iterable[Unit]) -> Mapping[str, Decision]:
    """The names of reductions that were begun in a kernel other than the GEMM's, with a decision each."""
    reason = "what it reads is not computed in the kernel of the GEMM"
    return {
        name: Decision("declined", name, unit.backend, reason)
        for unit in units
        for member in unit.members
        if is_group_store(member.node) and not has_gemm(unit)
        for name in (reduction_of(member.node),)
    }


def is_group_store(node: Node) -> bool:
    """Whether a node combines groups of results of a GEMM."""
    return isinstance(node, Scatter) and node.mode in GROUP_MODES


def reduction_of(node: Node) -> str:
    """The name of the reduction that a node begins which combines groups of results."""
    return node.name.removesuffix(_PARTIAL)


def part_names(name: str) -> tuple[str, ...]:
    """The names of the nodes that a reduction becomes, or may become, and its own."""
    return name, f"{name}{_PARTIAL}", f"{name}_final"


def _epilogues(readers: Readers, node: Reduction, results: str) -> Iterator[_Epilogue]:
    """The reductions over a GEMM's results, or over what its epilogue computes from each of them."""
    extents = _extents(node)
    buffers = [results]
    reductions: dict[str, Reduction] = {}
    for name in buffers:  # grows meanwhile
        for other in readers.get(name, ()):
            if isinstance(other, Reduction):
                reductions[other.name] = other
            elif other.output not in buffers and product(other.sizes) == product(node.sizes):
                buffers.append(other.output)
    for other in reductions.values():
        if other.kind not in CONTRACTIONS:
            index, *more = {item.index for item in loads(*other.expressions()) if item.buffer in buffers}
            yield _Epilogue(node, other, index, "" if more else _along(other, index, extents))


def _extents(node: Reduction) -> Mapping[str, IndexLike]:
    """How many rows and columns a GEMM has; none where it has several axes of one, or a batch."""
    used = [{n for item in loads(value) for n in free_axes(item.index)} for value in node.values]
    found: dict[str, list[Index]] = {"rows": [], "columns": [], "": []}
    for var in node.axes:
        sides = axis_name(var) in used[0], axis_name(var) in used[1]
        found["rows" if sides == (True, False) else "columns" if sides == (False, True) else ""].append(var)
    if len(found["rows"]) != 1 or len(found["columns"]) != 1 or found[""]:
        return {}
    return {along: axis_size(found[along][0]) for along in ("rows", "columns")}


def _along(node: Reduction, index: IndexLike, extents: Mapping[str, IndexLike]) -> str:
    """Whether a reduction that reads a matrix at an index does so along its rows or its columns; empty where
    it does neither.
    """
    for along, other, axes in (
        ("columns", "rows", (*node.axes, *node.raxes)),
        ("rows", "columns", (*node.raxes, *node.axes)),
    ):
        sizes = product(node.rsizes), product(node.sizes)
        if extents and index == flat_index(axes) and sizes == (extents[along], extents[other]):
            return along
    return ""


def _divided(graph: Graph, epilogue: _Epilogue, backend: Backend) -> tuple[Scatter, Buffer, Reduction] | str:
    """The node that combines groups of results, what it writes, and the node that combines these; or why a
    backend does not generate the first.
    """
    node = epilogue.reduction
    if node.kind not in _MODES or node.values[0].dtype is not DType.f32:
        return f"{node.kind} of {node.values[0].dtype} is not begun in a GEMM"
    if not epilogue.along:
        return "it is not over all rows or all columns of one matrix"
    width = backend.epilogue_reduction_width(epilogue.gemm, node.kind, epilogue.along)
    if width < 1:
        return f"it combines no results of a GEMM along its {epilogue.along}"
    across = epilogue.along == "columns"
    size = product(node.rsizes)
    groups = (size + width - 1) // width
    line, other, group = axis("t0", size), axis("t1", product(node.sizes)), axis("t2", groups)
    row, column = (other, line) if across else (line, other)
    index = other * groups + line // width if across else line // width * axis_size(other) + other
    name, device = f"{node.name}_part", graph.buffers[node.writes()[0]].device
    buffer = Buffer(name, DType.f32, device, (groups * axis_size(other),), (1,), "float32")
    first_name, last_name = part_names(node.name)[1:]
    value = _at(node, epilogue.index, row * axis_size(column) + column, line, other)
    mode = _MODES[node.kind]
    first = Scatter(first_name, (row, column), (), name, index, (), value, mode, origins=node.origins)
    answer = backend.claims(first)
    if not answer:
        return getattr(answer, "reason", "no reason given")
    whole = flat_index(node.axes)
    again = whole * groups + group if across else group * axis_size(other) + whole
    parts = (load(name, again, DType.f32),)
    return first, buffer, replace(node, name=last_name, raxes=(group,), values=parts)


def _at(node: Reduction, index: IndexLike, flat: IndexLike, line: Index, other: Index) -> Expr:
    """What a reduction combines, in terms of a matrix's two axes. `index`: at which it reads the matrix."""

    def change(expr: Expr) -> Expr:
        if expr.op != "load" or expr.index != index:
            return expr
        return moved(expr, flat)

    axes = unflattened(line, node.raxes) | unflattened(other, node.axes)
    return reindex(rewrite(node.values[0], change), axes)
