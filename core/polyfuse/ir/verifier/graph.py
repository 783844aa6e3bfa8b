"""The rules of expressions and graphs, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyfuse.base.errors import VerifyError
from polyfuse.ir.communication import Running
from polyfuse.ir.expr import Expr, walk
from polyfuse.ir.graph import Graph, reads, views_in
from polyfuse.ir.nodes import (
    Buffer,
    ExternCall,
    LoopNode,
    Node,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    View,
)
from polyfuse.ir.ops import CHECK_MODE, GROUP_MODES, STORE_MODES
from polyfuse.ir.text.print import Printer
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import extent_fault, index_fault, operation_fault, result_types
from polyfuse.symbolic import Index, IndexLike, free_symbols, is_nonnegative

_NEIGHBOURS = 2
"""Nodes shown on either side of a faulty one."""

_OUT = ("single", "tuple", "out", "into", "none")

_MODES = (*STORE_MODES, *GROUP_MODES, CHECK_MODE)


def verify_expr(
    expr: Expr, axes: Sequence[IndexLike] = (), buffers: Mapping[str, Buffer] | None = None
) -> None:
    """Check every expression under `expr`: types, operations, variables bound by `axes`, buffers known.

    Raises:
        VerifyError: a rule is broken; the message shows the expression.
    """
    for part in walk(expr):
        fault = _expression_fault(part, axes, buffers, None)
        if fault:
            printer = Printer(comments=False)
            lines = printer.expressions(expr)
            raise VerifyError(f"{fault}, at\n{_marked(lines, printer.reference(part))}")


def verify_graph(graph: Graph) -> None:
    """Check every rule of `polyfuse.ir.graph` and `polyfuse.ir.nodes`.

    Raises:
        VerifyError: a rule is broken; the message shows the node among its neighbours.
    """
    fault = _head_fault(graph)
    if fault:
        raise VerifyError(f"graph {graph.name}: {fault}")
    check = _Check(graph)
    for at, node in enumerate(graph.nodes):
        fault, part = check.node(node)
        if fault:
            shown = _excerpt(graph, at, part)
            raise VerifyError(f"graph {graph.name}: node {node.name}: {fault}, at\n{shown}")
    for number, output in enumerate(graph.outputs):
        for view in views_in(output.value):
            fault = check.view_fault(view)
            if fault:
                raise VerifyError(f"graph {graph.name}: output {number}: {fault}")


def _head_fault(graph: Graph) -> str:
    for key, buffer in graph.buffers.items():
        if key != buffer.name:
            return f"buffer {buffer.name!r} is listed under the name {key!r}"
        if len(buffer.size) != len(buffer.stride):
            return f"buffer {key!r} has {len(buffer.size)} sizes and {len(buffer.stride)} strides"
    names = [i.name for i in graph.inputs]
    names += [n.name for n in graph.nodes]
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return f"the name {name!r} is used twice among inputs and nodes"
        seen.add(name)
    for declared in graph.inputs:
        if declared.kind == "tensor" and declared.name not in graph.buffers:
            return f"input {declared.name!r} has no buffer"
    return ""


class _Check:
    """What is known while the nodes are gone through in order."""

    def __init__(self, graph: Graph) -> None:
        self.buffers = graph.buffers
        self.running = Running()
        self.written = {b.name for b in graph.buffers.values() if b.kind in ("input", "constant", "status")}
        self.written |= {i.name for i in graph.inputs}
        self.symbols = dict.fromkeys(graph.symbol_hints)
        for declared in graph.inputs:
            if declared.value is not None:
                self._define(declared.value)
            buffer = graph.buffers.get(declared.name)
            if buffer is not None:
                for index in (*buffer.size, *buffer.stride):
                    self._define(index)

    def _define(self, index: IndexLike) -> None:
        self.symbols.update(dict.fromkeys(free_symbols(index)))

    def node(self, node: Node) -> tuple[str, Expr | None]:
        """What is wrong with a node, and at which expression; and make known what it defines."""
        fault, part = self._node(node)
        if isinstance(node, ExternCall):
            self.symbols.update((name, None) for name, _ in node.symbols)
        self.written.update(node.writes())
        self.running.pass_by(node)
        return fault, part

    def _node(self, node: Node) -> tuple[str, Expr | None]:
        for name in node.writes():
            if name not in self.buffers:
                return f"it writes buffer {name!r}, which is not declared", None
        fault = self.running.fault(node)
        if fault:
            return fault, None
        for name in reads(node):
            if name not in self.buffers:
                return f"it reads buffer {name!r}, which is not declared", None
            if name not in self.written:
                return f"it reads buffer {name!r} before anything is written to it", None
        if isinstance(node, ExternCall):
            return self._call_fault(node), None
        if not isinstance(node, LoopNode):
            return f"{type(node).__name__} is not a kind of node", None
        axes = (*node.axes, *node.raxes)
        for root in node.expressions():
            for part in walk(root):
                fault = _expression_fault(part, axes, self.buffers, tuple(self.symbols))
                if fault:
                    return fault, part
        return self._write_fault(node), None

    def view_fault(self, view: View) -> str:
        """What is wrong with a view."""
        if view.buffer not in self.buffers:
            return f"buffer {view.buffer!r} is not declared"
        if view.buffer not in self.written:
            return f"nothing is written to buffer {view.buffer!r}"
        if len(view.size) != len(view.stride):
            return f"a view of {view.buffer!r} has {len(view.size)} sizes and {len(view.stride)} strides"
        for index in (*view.size, *view.stride, view.offset):
            fault = index_fault(index, (), symbols=tuple(self.symbols))
            if fault:
                return fault
        return ""

    def _call_fault(self, node: ExternCall) -> str:
        if node.out not in _OUT:
            return f"its results come as {node.out!r}, which is none of {', '.join(_OUT)}"
        if node.out in ("single", "out") and len(node.outputs) != 1:
            return f"it has {len(node.outputs)} outputs, and results come as {node.out!r}"
        if node.out == "into":
            self.written.update(node.outputs)
        for view in views_in((node.args, tuple(v for _, v in node.kwargs))):
            fault = self.view_fault(view)
            if fault:
                return fault
        return ""

    def _write_fault(self, node: LoopNode) -> str:
        types = tuple(e.dtype for e in node.expressions())
        if isinstance(node, Pointwise):
            if node.raxes:
                return "a pointwise node has no reduction axes"
            return self._element_fault(node.output, node.index, types[0], node.axes)
        if isinstance(node, Scatter):
            return self._scatter_fault(node)
        if not isinstance(node, (Reduction, Scan)):
            return f"{type(node).__name__} is not a kind of node"
        scan = isinstance(node, Scan)
        if scan and len(node.raxes) != 1:
            return f"a scan runs along one axis, not {len(node.raxes)}"
        found = result_types("scan" if scan else "reduce", node.kind, types)
        if isinstance(found, str):
            return found
        if len(found) != len(node.outputs):
            return f"{node.kind} gives {len(found)} results, and there are {len(node.outputs)} outputs"
        axes = (*node.axes, *node.raxes) if scan else node.axes
        for name, dtype in zip(node.outputs, found, strict=True):
            fault = self._element_fault(name, node.index, dtype, axes) if name else ""
            if fault:
                return fault
        return ""

    def _scatter_fault(self, node: Scatter) -> str:
        if node.mode not in _MODES:
            return f"store mode {node.mode!r} is unknown; the modes are {', '.join(_MODES)}"
        if any(e.dtype is not DType.i64 for e in node.indirect):
            return "an indirect operand is not i64"
        if node.mask is not None and node.mask.dtype is not DType.bool:
            return f"the mask is {node.mask.dtype}, not bool"
        masked = node.mask is not None
        return self._element_fault(
            node.target, node.index, node.value.dtype, node.axes, len(node.indirect), masked
        )

    def _element_fault(
        self,
        name: str,
        index: IndexLike,
        dtype: DType,
        axes: tuple[Index, ...],
        indirect: int = 0,
        masked: bool = False,
    ) -> str:
        buffer = self.buffers[name]
        if buffer.dtype is not dtype:
            return f"a value of type {dtype} is written to buffer {name!r}, which holds {buffer.dtype}"
        fault = index_fault(index, axes, indirect, tuple(self.symbols))
        if fault or masked:
            return fault
        return _inside(buffer, index, axes)


def _expression_fault(
    expr: Expr,
    axes: Sequence[IndexLike],
    buffers: Mapping[str, Buffer] | None,
    symbols: tuple[str, ...] | None,
) -> str:
    fault = operation_fault(expr.op, tuple(a.dtype for a in expr.args), expr.dtype, expr.payload)
    if fault:
        return fault
    if expr.op in ("index", "size"):
        return index_fault(expr.index, axes, symbols=symbols)
    if expr.op != "load":
        return ""
    name, index, count, masked = expr.access
    fault = index_fault(index, axes, count, symbols)
    if fault or buffers is None:
        return fault
    if name not in buffers:
        return f"buffer {name!r} is not declared"
    if buffers[name].dtype is not expr.dtype:
        return f"buffer {name!r} holds {buffers[name].dtype}, not {expr.dtype}"
    return "" if masked else _inside(buffers[name], index, axes)


def _inside(buffer: Buffer, index: IndexLike, axes: Sequence[IndexLike]) -> str:
    if any(not is_nonnegative(n - 1) for n in buffer.size):
        return ""
    extent: IndexLike = 1
    for n, stride in zip(buffer.size, buffer.stride, strict=True):
        extent = extent + (n - 1) * stride
    return extent_fault(index, extent, axes)


def _excerpt(graph: Graph, at: int, part: Expr | None) -> str:
    lines: list[str] = []
    for number in range(max(0, at - _NEIGHBOURS), min(len(graph.nodes), at + _NEIGHBOURS + 1)):
        printer = Printer(comments=True)
        try:
            body = printer.node(graph.nodes[number])
        except TypeError:
            body = [f"node {graph.nodes[number].name} = {type(graph.nodes[number]).__name__}"]
        if number != at:
            lines.extend(f"    {line}" for line in body)
        elif part is None:
            lines.extend(f"  > {line}" for line in body)
        else:
            lines.append(_marked(body, printer.reference(part)))
    return "\n".join(lines)


def _marked(lines: Sequence[str], name: str) -> str:
    return "\n".join(f"{'  > ' if line.strip().startswith(f'{name} =') else '    '}{line}" for line in lines)
