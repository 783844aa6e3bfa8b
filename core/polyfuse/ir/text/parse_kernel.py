"""Reading kernels."""

from __future__ import annotations

from polyfuse.ir.kernel import Alias, Kernel, KernelArg, KernelPart, RowBuffer, Section
from polyfuse.ir.statements import Statement
from polyfuse.ir.text.index import read_axis
from polyfuse.ir.text.parse_statement import StatementReader
from polyfuse.symbolic import Index, IndexLike


class KernelReader(StatementReader):
    """Reads kernels."""

    def kernel(self) -> Kernel:
        """A kernel."""
        tokens = self.tokens
        tokens.expect("kernel")
        name = tokens.name()
        tokens.expect("on")
        device = tokens.name()
        self.open()
        self.symbols()
        tokens.expect("numerics")
        numerics = tokens.name()
        deterministic = tokens.skip(",") and tokens.skip("deterministic")
        tokens.end_line()
        hints: list[int] = []
        axes, raxes = self._kernel_axes("axes", hints), self._kernel_axes("raxes", hints)
        self.loops(axes, raxes)
        if tokens.skip("hints"):
            hints = self.several(tokens.integer)
            tokens.end_line()
        args: list[KernelArg] = []
        while tokens.text in ("in", "out", "inout", "size"):
            args.append(self._argument())
        aliases: list[Alias] = []
        while tokens.skip("alias"):
            aliases.append(self._alias())
        row_buffers: list[RowBuffer] = []
        while tokens.skip("row_buffer"):
            row_buffers.append(self._row_buffer())
        parts: list[KernelPart] = []
        while tokens.skip("part"):
            parts.append(self._part())
        sections: list[Section] = []
        while not tokens.skip("}"):
            sections.append(self._section())
        return Kernel(
            name=name,
            device=device,
            axes=axes,
            raxes=raxes,
            args=tuple(args),
            row_buffers=tuple(row_buffers),
            sections=tuple(sections),
            size_hints=tuple(hints),
            deterministic=deterministic,
            numerics=numerics,
            aliases=tuple(aliases),
            parts=tuple(parts),
        )

    def _part(self) -> KernelPart:
        args = self.names()
        self.tokens.end_line()
        found = KernelPart(KernelReader(self.tokens).kernel(), args)
        self.tokens.end_line()
        return found

    def _kernel_axes(self, word: str, hints: list[int]) -> tuple[Index, ...]:
        if not self.tokens.skip(word):
            return ()

        def one() -> Index:
            found = read_axis(self.tokens, self.known)
            if self.tokens.skip("~"):
                hints.append(self.tokens.integer())
            return found

        axes = tuple(self.several(one))
        self.tokens.end_line()
        return axes

    def _argument(self) -> KernelArg:
        tokens = self.tokens
        kind = tokens.name()
        name = tokens.name()
        tokens.expect(":")
        dtype = self.dtype()
        numel: IndexLike | None = None
        if tokens.skip("["):
            numel = self.index()
            tokens.expect("]")
        aligned = tokens.skip("aligned")
        hint = tokens.integer() if tokens.skip("~") else None
        tokens.end_line()
        return KernelArg(name, kind, dtype, numel, aligned, hint)

    def _alias(self) -> Alias:
        output = self.tokens.name()
        self.tokens.expect(",")
        found = Alias(output, self.tokens.name())
        self.tokens.end_line()
        return found

    def _row_buffer(self) -> RowBuffer:
        name = self.tokens.name()
        self.tokens.expect(":")
        dtype = self.dtype()
        self.tokens.expect("[")
        size = self.index()
        self.tokens.expect("]")
        self.tokens.end_line()
        return RowBuffer(name, dtype, size)

    def _section(self) -> Section:
        looped = self.tokens.skip("loop")
        if not looped:
            self.tokens.expect("once")
        self.open()
        body: list[Statement] = []
        while not self.tokens.skip("}"):
            body.append(self.statement())
        self.tokens.end_line()
        return Section(looped, tuple(body))
