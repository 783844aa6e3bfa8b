"""IR as text that people read and `polyfuse.ir.text.parse` reads back: ``parse(text(x)) == x``.

The text of equal data is equal, in any process. Comments say where nodes come from and are no part of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from polyfuse.ir.expr import Expr, walk
from polyfuse.ir.graph import Graph, GraphInput
from polyfuse.ir.kernel import Kernel, KernelArg, Section
from polyfuse.ir.nodes import (
    CALLS,
    Buffer,
    Collective,
    ExternCall,
    LoopNode,
    Node,
    Opaque,
    Origin,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    View,
    Wait,
)
from polyfuse.ir.statements import Load, Statement, Store, definition
from polyfuse.ir.text.index import Scope, name_text, symbol_text
from polyfuse.ir.text.tokens import RESERVED
from polyfuse.ir.types import DType
from polyfuse.symbolic import Index, IndexLike


def text(item: Kernel | Graph | Node | Expr | IndexLike, comments: bool = True) -> str:
    """The text of a kernel, a graph, a node, an expression or an index."""
    printer = Printer(comments)
    if isinstance(item, Kernel):
        return printer.kernel(item)
    if isinstance(item, Graph):
        return printer.graph(item)
    if isinstance(item, Node):
        body = printer.node(item)
        return "\n".join(printer.symbols() + body) + "\n"
    if isinstance(item, Expr):
        body = [*printer.expressions(item), f"yield {printer.reference(item)}"]
        return "\n".join(["expr {", *_indent(printer.symbols() + body), "}"]) + "\n"
    index = printer.scope.index(item)
    return "\n".join([*printer.symbols(), f"index {index}"]) + "\n"


class Printer:
    """Prints one item; holds what it has declared so far."""

    def __init__(self, comments: bool = True) -> None:
        self.scope = Scope()
        self.comments = comments
        self._buffers: dict[str, Buffer] = {}
        self._numbers: dict[Expr, str] = {}

    def symbols(self) -> list[str]:
        """The declaration of the shape symbols used in what was printed."""
        found = [symbol_text(self.scope.symbols[name]) for name in sorted(self.scope.symbols)]
        return [f"symbols {', '.join(found)}"] if found else []

    # Kernels.

    def kernel(self, kernel: Kernel) -> str:
        """The text of a kernel."""
        self.scope.loops(kernel.axes, kernel.raxes)
        facts = [f"numerics {kernel.numerics}"]
        if kernel.deterministic:
            facts.append("deterministic")
        lines = [", ".join(facts)]
        matched = len(kernel.size_hints) == len(kernel.axes + kernel.raxes)
        hints = iter(kernel.size_hints) if matched else None
        for word, axes in (("axes", kernel.axes), ("raxes", kernel.raxes)):
            if axes:
                declared = (self._axis(a, None if hints is None else next(hints)) for a in axes)
                lines.append(f"{word} {', '.join(declared)}")
        if hints is None and kernel.size_hints:
            lines.append("hints " + ", ".join(map(str, kernel.size_hints)))
        lines.extend(self._argument(arg) for arg in kernel.args)
        for alias in kernel.aliases:
            lines.append(f"alias {name_text(alias.output)}, {name_text(alias.input)}")
        for row in kernel.row_buffers:
            lines.append(f"row_buffer {name_text(row.name)}: {row.dtype}[{self.scope.index(row.size)}]")
        for section in kernel.sections:
            lines.extend(self.section(section))
        for part in kernel.parts:
            lines.append(f"part {', '.join(map(name_text, part.args))}")
            lines.extend(Printer(self.comments).kernel(part.kernel).splitlines())
        head = f"kernel {name_text(kernel.name)} on {name_text(kernel.device)} {{"
        return "\n".join([head + self._origins(kernel.origins), *_indent(self.symbols() + lines), "}"]) + "\n"

    def _axis(self, axis: Index, hint: int | None) -> str:
        return self.scope.declaration(axis) + ("" if hint is None else f" ~ {hint}")

    def _argument(self, arg: KernelArg) -> str:
        line = f"{arg.kind} {name_text(arg.name)}: {arg.dtype}"
        if arg.numel is not None:
            line += f"[{self.scope.index(arg.numel)}]"
        if arg.aligned:
            line += " aligned"
        return line + ("" if arg.hint is None else f" ~ {arg.hint}")

    def section(self, section: Section) -> list[str]:
        """The lines of a section."""
        return ["loop {" if section.looped else "once {", *_indent(map(self.statement, section.body)), "}"]

    def statement(self, stmt: Statement) -> str:
        """The line of a statement."""
        names = [name_text(a) for a in stmt.args]
        head = f"{', '.join(map(name_text, stmt.targets))} = " if stmt.targets else ""
        head += f"{stmt.op} "
        match stmt:
            case Load():
                line = f"{head}{stmt.dtype} {self._element(stmt)}"
                return line if stmt.mask is None else f"{line} if {names[-2]} else {names[-1]}"
            case Store():
                line = f"{head}{stmt.dtype} {stmt.mode} {self._element(stmt)} = {names[0]}"
                return line if stmt.mask is None else f"{line} if {names[-1]}"
        words = [str(stmt.dtype), *(() if stmt.payload is None else (self._payload(stmt.payload),))]
        return head + " ".join(words) + (f" ({', '.join(names)})" if names else "")

    def _element(self, stmt: Load | Store) -> str:
        return self._subscript(stmt.buffer, stmt.index) + _indirect([name_text(a) for a in stmt.indirect])

    def _subscript(self, name: str, index: IndexLike) -> str:
        return f"{name_text(name)}[{self.scope.index(index)}]"

    def _payload(self, value: Any) -> str:
        word = isinstance(value, str) and value.isidentifier() and value not in RESERVED
        return value if word else self.value(value)

    # Expressions.

    def expressions(self, *roots: Expr) -> list[str]:
        """A line for each expression under `roots`, operands first."""
        self._numbers = {}
        lines: list[str] = []
        for expr in walk(*roots):
            name = f"%{len(self._numbers)}"
            args = tuple(self._numbers[a] for a in expr.args)
            self._numbers[expr] = name
            lines.append(self.statement(definition(name, expr, args)))
        return lines

    def reference(self, expr: Expr) -> str:
        """The name under which an expression was printed."""
        return self._numbers[expr]

    # Nodes.

    def node(self, node: Node) -> list[str]:
        """The lines of a node.

        Raises:
            TypeError: a node of its kind has no text.
        """
        if isinstance(node, ExternCall):
            return self._call(node)
        if not isinstance(node, LoopNode):
            raise TypeError(f"{type(node).__name__} has no text; add its form to print and parse")
        self.scope.loops(node.axes, node.raxes)
        head = f"node {name_text(node.name)} = {_word_of(node)} over ({self._axes(node.axes)})"
        if node.raxes:
            head += f" by ({self._axes(node.raxes)})"
        lines = [*self.expressions(*node.expressions()), self._write(node)]
        return [head + " {" + self._origins(node.origins), *_indent(lines), "}"]

    def _axes(self, axes: tuple[Index, ...]) -> str:
        return ", ".join(map(self.scope.declaration, axes))

    def _write(self, node: LoopNode) -> str:
        if isinstance(node, Pointwise):
            return f"write {self._subscript(node.output, node.index)} = {self.reference(node.value)}"
        if isinstance(node, Scatter):
            line = f"write {node.mode} {self._subscript(node.target, node.index)}"
            line += _indirect([self.reference(e) for e in node.indirect]) + f" = {self.reference(node.value)}"
            return line + (f" if {self.reference(node.mask)}" if node.mask is not None else "")
        if isinstance(node, (Reduction, Scan)):
            values = ", ".join(map(self.reference, node.values))
            return f"write {_results(node.outputs)} [{self.scope.index(node.index)}] = {values}"
        raise TypeError(f"{type(node).__name__} has no text; add its form to print and parse")

    def _call(self, node: ExternCall) -> list[str]:
        self.scope.loops()
        word = next(word for word, kind in CALLS.items() if isinstance(node, kind))
        lines = [f"results {_results(node.outputs)}"] if node.outputs else []
        lines.extend(f"arg {self.value(a)}" for a in node.args)
        lines.extend(f"keyword {name_text(name)} = {self.value(a)}" for name, a in node.kwargs)
        if isinstance(node, Collective):
            lines.append(f"group {json.dumps(node.group)}")
        held = node.holds if isinstance(node, Wait) else ()
        for key, names in (("mutates", node.mutates), ("aliases", node.aliases), ("holds", held)):
            if names:
                lines.append(f"{key} {', '.join(map(name_text, names))}")
        lines.extend(f"defines {name_text(name)} = {json.dumps(str(path))}" for name, path in node.symbols)
        lines.extend(flag for flag in ("ordered", "fallback") if getattr(node, flag))
        head = f"node {name_text(node.name)} = {word} {name_text(node.op)} {node.out} {{"
        return [head + self._origins(node.origins), *_indent(lines), "}"]

    # Graphs.

    def graph(self, graph: Graph) -> str:
        """The text of a graph."""
        self._buffers = graph.buffers
        lines = [self._buffer(b) for b in graph.buffers.values()]
        lines.extend(self._input(i) for i in graph.inputs)
        for node in graph.nodes:
            lines.extend(self.node(node))
        self.scope.loops()
        for o in graph.outputs:
            marks = " saved" * o.saved + ("" if o.again is None else f" again {o.again}")
            lines.append(f"output {o.kind} {self.value(o.value)}{marks}")
        known = self.symbols()
        if graph.symbol_hints:
            hints = (f"{name_text(name)} = {value}" for name, value in graph.symbol_hints.items())
            known.append(f"hints {', '.join(hints)}")
        head = f"graph {name_text(graph.name)} {graph.kind} {{"
        return "\n".join([head, *_indent(known + lines), "}"]) + "\n"

    def _buffer(self, buffer: Buffer) -> str:
        dtype = "none" if buffer.dtype is None else str(buffer.dtype)
        size, stride = self._indices(buffer.size), self._indices(buffer.stride)
        layout = f"{dtype}/{name_text(buffer.torch_dtype)} on {json.dumps(buffer.device)}"
        return f"buffer {name_text(buffer.name)}: {buffer.kind} {layout} size [{size}] stride [{stride}]"

    def _input(self, declared: GraphInput) -> str:
        line = f"input {name_text(declared.name)}: {declared.kind}"
        if declared.value is not None:
            line += f" = {self.scope.index(declared.value)}"
        address = "" if declared.address == "traced" else f" at {declared.address} address"
        label = f" called {json.dumps(declared.label)}" if declared.label else ""
        return line + (" static" if declared.static else "") + address + label

    # Values.

    def value(self, value: Any) -> str:
        """The text of an argument: nested tuples of plain values, indices, views and host values.

        Raises:
            TypeError: it is of another kind.
        """
        if value is None or isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, (int, str, float, complex)):
            return _plain(value)
        if isinstance(value, Index):
            return f"<{self.scope.index(value)}>"
        if isinstance(value, View):
            return self._view(value)
        if isinstance(value, Opaque):
            return f"object {json.dumps(value.key)}" if value.key else f"host {json.dumps(value.text)}"
        if isinstance(value, DType):
            return f"dtype {value}"
        if isinstance(value, tuple):
            return f"({', '.join(map(self.value, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, list):
            return f"[{', '.join(map(self.value, value))}]"
        raise TypeError(f"{type(value).__name__} has no text; pass it as an Opaque")

    def _view(self, view: View) -> str:
        known = self._buffers.get(view.buffer)
        name = f"&{name_text(view.buffer)}"
        if known is not None and known.view() == view:
            return name
        dtype = "" if view.dtype is None else f"; {view.dtype}"
        layout = f"{self._indices(view.size)}; {self._indices(view.stride)}; {self.scope.index(view.offset)}"
        return f"{name}[{layout}{dtype}]"

    def _indices(self, indices: Iterable[IndexLike]) -> str:
        return ", ".join(map(self.scope.index, indices))

    def _origins(self, origins: tuple[Origin, ...]) -> str:
        if not self.comments or not origins:
            return ""
        return "  # " + "; ".join(" ".join(f"{o.op} {o.fx} {o.source}".split()) for o in origins)


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _indirect(names: list[str]) -> str:
    return f" @({', '.join(names)})" if names else ""


def _results(outputs: tuple[str, ...]) -> str:
    return ", ".join("_" if not o else '"_"' if o == "_" else name_text(o) for o in outputs)


def _word_of(node: LoopNode) -> str:
    if isinstance(node, (Reduction, Scan)):
        return f"{type(node).__name__.lower()} {node.kind}"
    return type(node).__name__.lower()


def _plain(value: float | complex | str) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    return repr(value)
