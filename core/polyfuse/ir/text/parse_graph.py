"""Reading expressions, nodes and graphs."""

from __future__ import annotations

from typing import Any

from polyfuse.ir.expr import Expr
from polyfuse.ir.graph import Graph, GraphInput, GraphOutput
from polyfuse.ir.nodes import (
    CALLS,
    Buffer,
    Collective,
    ExternCall,
    Node,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    SymbolPath,
    Wait,
)
from polyfuse.ir.statements import expression
from polyfuse.ir.text.index import read_axis
from polyfuse.ir.text.parse_statement import StatementReader
from polyfuse.symbolic import Index, IndexLike


class GraphReader(StatementReader):
    """Reads graphs and their parts."""

    def expression(self) -> Expr:
        """An expression by itself."""
        self.tokens.expect("expr")
        self.open()
        self.symbols()
        values = self.expressions("yield")
        self.tokens.expect("yield")
        found = self.value_of(values)
        self.tokens.end_line()
        self.tokens.expect("}")
        return found

    def expressions(self, end: str) -> dict[str, Expr]:
        """Numbered expressions, up to a line that begins with a word."""
        values: dict[str, Expr] = {}
        while self.tokens.text != end:
            mark = self.tokens.mark()
            stmt = self.statement()
            for name in stmt.args:
                if name not in values:
                    self.tokens.reset(mark)
                    raise self.tokens.error(f"{name!r} is used before it is defined")
            args = tuple(values[a] for a in stmt.args)
            values[stmt.targets[0]] = expression(stmt, args)
        return values

    def value_of(self, values: dict[str, Expr]) -> Expr:
        """A reference to one of them."""
        if self.tokens.text not in values:
            raise self.tokens.error(f"{self.tokens.text!r} is used before it is defined")
        return values[self.tokens.name()]

    # Nodes.

    def node(self) -> Node:
        """A node."""
        tokens = self.tokens
        tokens.expect("node")
        name = tokens.name()
        tokens.expect("=")
        word = tokens.name()
        if word in CALLS:
            return self._call(name, CALLS[word])
        kind = tokens.name() if word in ("reduction", "scan") else ""
        tokens.expect("over")
        axes = self._node_axes()
        raxes = self._node_axes() if tokens.skip("by") else ()
        self.loops(axes, raxes)
        self.open()
        values = self.expressions("write")
        tokens.expect("write")
        found: Node
        if word == "pointwise":
            output, index = self.element()
            tokens.expect("=")
            value = self.value_of(values)
            found = Pointwise(name, axes=axes, raxes=raxes, output=output, index=index, value=value)
        elif word == "scatter":
            found = self._scatter(name, axes, raxes, values)
        elif word in ("reduction", "scan"):
            outputs = self._results()
            tokens.expect("[")
            index = self.index()
            tokens.expect("]")
            tokens.expect("=")
            given = tuple(self.several(lambda: self.value_of(values)))
            make = Reduction if word == "reduction" else Scan
            found = make(name, axes=axes, raxes=raxes, outputs=outputs, index=index, kind=kind, values=given)
        else:
            raise tokens.error(f"{word!r} is not a kind of node")
        tokens.end_line()
        tokens.expect("}")
        tokens.end_line()
        return found

    def _node_axes(self) -> tuple[Index, ...]:
        self.tokens.expect("(")
        return self.until(")", lambda: read_axis(self.tokens, self.declared))

    def _results(self) -> tuple[str, ...]:
        def one() -> str:
            if self.tokens.kind == "name" and self.tokens.skip("_"):
                return ""
            return self.tokens.name()

        return tuple(self.several(one))

    def _scatter(
        self, name: str, axes: tuple[Index, ...], raxes: tuple[Index, ...], values: dict[str, Expr]
    ) -> Scatter:
        mode = self.tokens.name()
        target, index = self.element()
        indirect = tuple(values[i] for i in self.indirect())
        self.tokens.expect("=")
        value = self.value_of(values)
        mask = self.value_of(values) if self.tokens.skip("if") else None
        return Scatter(
            name,
            axes=axes,
            raxes=raxes,
            target=target,
            index=index,
            indirect=indirect,
            value=value,
            mode=mode,
            mask=mask,
        )

    def _call(self, name: str, make: type[ExternCall]) -> ExternCall:
        tokens = self.tokens
        self.loops()
        op, out = tokens.name(), tokens.name()
        self.open()
        parts: dict[str, Any] = {"outputs": ()}
        args: list[Any] = []
        kwargs: list[tuple[str, Any]] = []
        symbols: list[tuple[str, SymbolPath]] = []
        while not tokens.skip("}"):
            match word := tokens.name():
                case "results":
                    parts["outputs"] = self._results()
                case "arg":
                    args.append(self.value())
                case "keyword":
                    key = tokens.name()
                    tokens.expect("=")
                    kwargs.append((key, self.value()))
                case "defines":
                    symbols.append(self._defined())
                case "mutates" | "aliases":
                    parts[word] = self.names()
                case "holds" if make is Wait:
                    parts[word] = self.names()
                case "group" if make is Collective:
                    parts[word] = tokens.string()
                case "ordered" | "fallback":
                    parts[word] = True
                case _:
                    raise tokens.error(f"{word!r} is not a part of a call")
            tokens.end_line()
        tokens.end_line()
        return make(
            name, op=op, args=tuple(args), kwargs=tuple(kwargs), out=out, symbols=tuple(symbols), **parts
        )

    def _defined(self) -> tuple[str, SymbolPath]:
        """A symbol that a result defines."""
        key = self.tokens.name()
        self.tokens.expect("=")
        try:
            return key, SymbolPath.of(self.tokens.string())
        except ValueError as error:
            raise self.tokens.error(str(error)) from None

    # Graphs.

    def graph(self) -> Graph:
        """A graph."""
        tokens = self.tokens
        tokens.expect("graph")
        name, kind = tokens.name(), tokens.name()
        self.open()
        self.symbols()
        hints: dict[str, int] = {}
        if tokens.skip("hints"):
            hints = dict(self.several(self._hint))
            tokens.end_line()
        while tokens.skip("buffer"):
            buffer = self._buffer()
            self.buffers[buffer.name] = buffer
        inputs: list[GraphInput] = []
        while tokens.skip("input"):
            inputs.append(self._input())
        nodes: list[Node] = []
        while tokens.text == "node":
            nodes.append(self.node())
        self.loops()
        outputs: list[GraphOutput] = []
        while tokens.skip("output"):
            word = tokens.name()
            value, saved = self.value(), tokens.skip("saved")
            again = tokens.integer() if tokens.skip("again") else None
            outputs.append(GraphOutput(value, word, saved, again))
            tokens.end_line()
        tokens.expect("}")
        return Graph(
            name=name,
            kind=kind,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            buffers=self.buffers,
            nodes=tuple(nodes),
            symbol_hints=hints,
        )

    def _hint(self) -> tuple[str, int]:
        name = self.tokens.name()
        self.tokens.expect("=")
        return name, self.tokens.integer()

    def _buffer(self) -> Buffer:
        tokens = self.tokens
        name = tokens.name()
        tokens.expect(":")
        kind = tokens.name()
        dtype = None if tokens.skip("none") else self.dtype()
        tokens.expect("/")
        torch_dtype = tokens.name()
        tokens.expect("on")
        device = tokens.string()
        tokens.expect("size")
        size = self._indices()
        tokens.expect("stride")
        stride = self._indices()
        tokens.end_line()
        return Buffer(name, dtype, device, size, stride, torch_dtype, kind)

    def _indices(self) -> tuple[IndexLike, ...]:
        self.tokens.expect("[")
        return self.until("]", self.index)

    def _input(self) -> GraphInput:
        name = self.tokens.name()
        self.tokens.expect(":")
        kind = self.tokens.name()
        value = self.index() if self.tokens.skip("=") else None
        static = self.tokens.skip("static")
        address = "traced"
        if self.tokens.skip("at"):
            address = self.tokens.name()
            self.tokens.expect("address")
        label = self.tokens.string() if self.tokens.skip("called") else ""
        self.tokens.end_line()
        return GraphInput(name, kind, value, static, address, label)
