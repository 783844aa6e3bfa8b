"""Reading statements, which kernels hold, and in numbered form nodes."""

from __future__ import annotations

from typing import Any

from polyfuse.ir.kernel import Stmt
from polyfuse.ir.parse_base import Reader
from polyfuse.ir.tokens import RESERVED
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike


class StatementReader(Reader):
    """Reads statements."""

    def statement(self) -> Stmt:
        """A statement."""
        tokens = self.tokens
        targets = self._targets()
        op = tokens.name()
        dtype = self.dtype()
        if op == "load" and tokens.kind in ("name", "string"):
            found = self._load(targets, dtype)
        elif op == "store" and tokens.kind == "name":
            found = self._store(dtype)
        else:
            attrs: list[Any] = []
            while not tokens.at_line_end() and tokens.text != "(":
                attrs.append(self._attribute())
            args = self.until(")", tokens.name) if tokens.skip("(") else ()
            found = Stmt(targets, op, args, dtype, tuple(attrs))
        tokens.end_line()
        return found

    def _targets(self) -> tuple[str, ...]:
        mark = self.tokens.mark()
        names = self.names()
        if self.tokens.skip("="):
            return names
        self.tokens.reset(mark)
        return ()

    def _attribute(self) -> Any:
        if self.tokens.kind == "name" and self.tokens.text not in RESERVED:
            return self.tokens.name()
        return self.value()

    def element(self) -> tuple[str, IndexLike]:
        """A buffer and an index into it."""
        name = self.tokens.name()
        self.tokens.expect("[")
        index = self.index()
        self.tokens.expect("]")
        return name, index

    def indirect(self) -> tuple[str, ...]:
        """The indirect operands of an access, where there are some."""
        if not self.tokens.skip("@"):
            return ()
        self.tokens.expect("(")
        return self.until(")", self.tokens.name)

    def _load(self, targets: tuple[str, ...], dtype: DType) -> Stmt:
        name, index = self.element()
        indirect = self.indirect()
        masked = self.tokens.skip("if")
        args = indirect
        if masked:
            args += (self.tokens.name(),)
            self.tokens.expect("else")
            args += (self.tokens.name(),)
        return Stmt(targets, "load", args, dtype, (name, index, len(indirect), masked))

    def _store(self, dtype: DType) -> Stmt:
        mode = self.tokens.name()
        name, index = self.element()
        indirect = self.indirect()
        self.tokens.expect("=")
        args = (self.tokens.name(), *indirect)
        masked = self.tokens.skip("if")
        if masked:
            args += (self.tokens.name(),)
        return Stmt((), "store", args, dtype, (name, index, len(indirect), mode, masked))
