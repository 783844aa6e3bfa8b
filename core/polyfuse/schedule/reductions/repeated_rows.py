"""A row's normalisation computed again by each thread block of the GEMV (matrix-vector matmul) that reads it.

With one row, the norm before a linear layer is a kernel of one thread block, during which the device idles.
Each block of the GEMV reads the whole row anyway: it computes the row's sums itself, while its part of the
matrix is on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from polyfuse.ir.expr import Expr, load, loads, reindex, rewrite
from polyfuse.ir.graph import Graph, reads
from polyfuse.ir.nodes import Buffer, LoopNode, Node, Pointwise, Reduction
from polyfuse.plugin import Backend, TargetInfo
from polyfuse.schedule.deps import storage_roots
from polyfuse.schedule.result import Decision
from polyfuse.symbolic import (
    IndexLike,
    axis,
    axis_name,
    axis_size,
    coefficient,
    flat_index,
    free_axes,
    product,
    unflattened,
)

_FEWEST = 256
"""Results of a GEMV that keep a device busy."""
_MOST_BYTES = 256 << 20
"""Of a matrix: a larger one takes much longer than a kernel for the row, and arithmetic is not free."""
_MOST_VECTORS = 4
"""Rows that a block reads for one: more of them take as long as the matrix."""


def repeat_rows(
    graph: Graph,
    claimed: Mapping[str, Backend],
    target_info: Callable[[str, str], TargetInfo],
    decisions: list[Decision],
) -> tuple[Graph, Mapping[str, Backend]]:
    """`graph` with the reductions of single rows done by the GEMVs that read them, where backends' target
    info wants that (`TargetInfo.repeated_row`), and who generates its loops.

    Args:
        claimed: who generates the loops of `graph`, by the node's name.
        target_info: that of a backend, by its name, on a device.
        decisions: gets an entry for each row.
    """
    targets = {
        (claimed[n.name].name, graph.buffers[n.writes()[0]].device)
        for n in graph.nodes
        if isinstance(n, Reduction)
    }
    if not any(target_info(*target).repeated_row for target in targets):
        return graph, claimed
    made = _Rows(graph, claimed, target_info)
    for name in made.rows():
        changed = made.without(name)
        if changed is not None:
            made.accept(changed)
            reason = "each block of the GEMVs computes the row again"
            decisions.append(Decision("repeat", name, "", reason))
    return (made.graph, made.claimed) if made.accepted else (graph, claimed)


@dataclass(frozen=True)
class _Changed:
    """What stands at positions of a graph instead of their nodes, and the buffers of new ones."""

    nodes: dict[int, tuple[LoopNode, ...]]
    buffers: dict[str, Buffer]


@dataclass
class _Rows:
    """The rows of one graph."""

    graph: Graph
    claimed: Mapping[str, Backend]
    target_info: Callable[[str, str], TargetInfo]
    accepted: bool = False
    _writers: dict[str, int] = field(init=False)
    _readers: dict[str, list[int]] = field(init=False)
    _fixed: set[str] = field(init=False)
    _normalised: dict[tuple[str, IndexLike], Pointwise | None] = field(init=False)
    # of a node by its identity: the nodes of a graph are looked through once for each row
    _read: dict[int, tuple[Node, tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._look()

    def _look(self) -> None:
        graph = self.graph
        roots = storage_roots(graph)
        writes = Counter(roots[name] for node in graph.nodes for name in node.writes())
        given = {roots[item.name] for item in graph.inputs if item.name in roots}
        # what is read later than before must be the same then
        self._fixed = {n for n, root in roots.items() if writes[root] + (root in given) <= 1}
        self._writers = {name: i for i, node in enumerate(graph.nodes) for name in node.writes()}
        self._readers, self._normalised = {}, {}
        for i, node in enumerate(graph.nodes):
            for name in self._reads(node):
                self._readers.setdefault(name, []).append(i)

    def _reads(self, node: Node) -> tuple[str, ...]:
        found = self._read.get(id(node))
        if found is None:
            found = self._read[id(node)] = node, reads(node)
        return found[1]

    def rows(self) -> list[str]:
        """Buffers that may be rows, or a number that was made of one."""
        outputs = {*self.graph.output_buffers(), *self.graph.mutated_inputs()}
        return [n for n in self._writers if n in self._fixed and n not in outputs and self.writer(n)]

    def accept(self, changed: _Changed) -> None:
        """Go on with the changed graph."""
        nodes: list[Node] = []
        owners = dict(self.claimed)
        for i, node in enumerate(self.graph.nodes):
            new = changed.nodes.get(i, (node,))
            nodes.extend(new)
            owners.update((item.name, owners[node.name]) for item in new if isinstance(item, LoopNode))
        buffers = {**self.graph.buffers, **changed.buffers}
        self.graph = replace(self.graph, nodes=tuple(nodes), buffers=buffers)
        self.claimed, self.accepted = owners, True
        self._look()

    def without(self, name: str) -> _Changed | None:
        """The graph without a row; None where something needs it in memory."""
        readers = self._readers.get(name, [])
        if not readers:
            return None
        changed, shared = _Changed({}, {}), dict[tuple[str, tuple[IndexLike, ...]], dict[str, str]]()
        for at in readers:
            node = self.graph.nodes[at]
            if not isinstance(node, Reduction) or not self._is_gemv(node, name):
                return None
            repeated = _Repeated(self, node, shared)
            value = repeated.expanded(_value(node.values[0], node))
            if not repeated.found or len(repeated.vectors) > _MOST_VECTORS:
                return None
            new = (*repeated.nodes, replace(node, values=(value,)))
            if not all(self.claimed[node.name].claims(item) for item in new):
                return None
            changed.nodes[at] = new
            changed.buffers.update(repeated.buffers)
        return changed

    def _is_gemv(self, node: Reduction, row: str) -> bool:
        """Whether a node multiplies a row, or what is made of it, by a matrix that is contiguous along it."""
        count, length = product(node.sizes), product(node.rsizes)
        if node.kind != "sum" or len(node.raxes) != 1:
            return False
        if not isinstance(count, int) or not isinstance(length, int):
            return False
        device = self.graph.buffers[node.writes()[0]].device
        limit = self.target_info(self.claimed[node.name].name, device).repeated_row
        if length > limit or count < _FEWEST:
            return False
        inside = axis_name(node.raxes[0])
        found = loads(_value(node.values[0], node))
        wide = {axis_name(a) for a in (*node.axes, *node.raxes) if axis_size(a) != 1}
        matrices = [item for item in found if set(free_axes(item.index)) == wide]
        if not matrices or any(coefficient(item.index, inside) != 1 or item.args for item in matrices):
            return False
        if any(count * length * item.dtype.itemsize > _MOST_BYTES for item in matrices):
            return False
        indices = (node.raxes[0],) if self.graph.buffers[row].numel == length else (0,)
        return all(item.index in indices and not item.args for item in found if item.buffer == row)

    def writer(self, name: str) -> Pointwise | Reduction | None:
        """The loop that makes a buffer, where it may run again later."""
        at = self._writers.get(name)
        node = None if at is None or name not in self._fixed else self.graph.nodes[at]
        if not isinstance(node, (Pointwise, Reduction)):
            return None
        return node if all(n in self._fixed for n in self._reads(node)) else None

    def sum_of_row(self, name: str, length: IndexLike) -> Reduction | None:
        """The reduction of a row of some length that makes a buffer of one element."""
        node = self.writer(name)
        if not isinstance(node, Reduction) or product(node.sizes) != 1:
            return None
        return node if product(node.rsizes) == length else None

    def normalised(self, name: str, length: IndexLike) -> Pointwise | None:
        """The loop that makes a row, or one number of it, with a reduction of a row of the same length."""
        key = name, length
        if key not in self._normalised:
            self._normalised[key] = self._find_normalised(name, length)
        return self._normalised[key]

    def _find_normalised(self, name: str, length: IndexLike) -> Pointwise | None:
        node = self.writer(name)
        if not isinstance(node, Pointwise) or product(node.sizes) not in (1, length):
            return None
        behind = any(self.sum_of_row(n, length) or self.normalised(n, length) for n in self._reads(node))
        return node if behind and node.index == flat_index(node.axes) else None


def _value(value: Expr, node: Reduction) -> Expr:
    """One of the values of a reduction, without axes of one point."""
    return reindex(value, {axis_name(a): 0 for a in node.axes if axis_size(a) == 1})


@dataclass
class _Repeated:
    """The reductions of a row, one for each result of a GEMV.

    Attributes:
        shared: buffers for those of a node, by its name and the sizes of the GEMV.
        nodes: made for this GEMV, in an order in which they can run.
        buffers: of their results.
        vectors: buffers that are read along the row.
        found: whether there are any.
    """

    rows: _Rows
    matvec: Reduction
    shared: dict[tuple[str, tuple[IndexLike, ...]], dict[str, str]]
    nodes: list[Reduction] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    vectors: set[str] = field(default_factory=set)
    found: bool = False

    def expanded(self, root: Expr) -> Expr:
        """An expression with what makes the buffers that it reads, as far as they need a row's reduction."""
        length, results = product(self.matvec.rsizes), {axis_name(a) for a in self.matvec.axes}

        def change(expr: Expr) -> Expr:
            if expr.op != "load" or expr.args:
                return expr
            total = self.rows.sum_of_row(expr.buffer, length)
            if total is not None:
                self.found = True
                return load(self._result(total, expr.buffer), flat_index(self.matvec.axes), expr.dtype)
            row = self.rows.normalised(expr.buffer, length)
            if row is not None:
                return self.expanded(reindex(row.value, unflattened(expr.index, row.axes)))
            along = free_axes(expr.index)
            if along and results.isdisjoint(along):
                self.vectors.add(expr.buffer)
            return expr

        return rewrite(root, change)

    def _result(self, node: Reduction, name: str) -> str:
        """The buffer with a result of a row's reduction for each result of the GEMV."""
        key = node.name, self.matvec.sizes
        if key not in self.shared:
            suffix = f"by_{self.matvec.name}"
            axes = tuple(axis(f"z{i}", axis_size(a)) for i, a in enumerate(self.matvec.axes))
            index, sizes = flat_index(axes), self.matvec.sizes
            names = {old: f"{old}_{suffix}" for old in node.writes()}
            # its own reductions of the row stand at the same result
            inside = replace(self, matvec=replace(self.matvec, axes=axes))
            values = tuple(inside.expanded(_value(value, node)) for value in node.values)
            for old, new in names.items():
                strides = tuple(product(sizes[i + 1 :]) for i in range(len(sizes)))
                buffer = replace(self.rows.graph.buffers[old], name=new, size=sizes, stride=strides)
                self.buffers[new] = buffer
            made = replace(node, name=f"{node.name}_{suffix}", axes=axes, index=index, values=values)
            self.nodes.append(replace(made, outputs=tuple(names.get(old, "") for old in node.outputs)))
            self.shared[key] = names
        return self.shared[key][name]
