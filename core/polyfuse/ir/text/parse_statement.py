"""Reading statements, which kernels hold, and in numbered form nodes."""

from __future__ import annotations

from typing import Any

from polyfuse.ir.expr import Access
from polyfuse.ir.statements import Statement, statement
from polyfuse.ir.text.parse_base import Reader
from polyfuse.ir.text.tokens import RESERVED
from polyfuse.symbolic import IndexLike


class StatementReader(Reader):
    """Reads statements."""

    def statement(self) -> Statement:
        """A statement."""
        tokens = self.tokens
        mark = tokens.mark()
        targets = self._targets()
        op = tokens.name()
        dtype = self.dtype()
        payload: Any = None
        if op == "load":
            payload, args = self._load()
        elif op == "store":
            payload, args = self._store()
        else:
            if not tokens.at_line_end() and tokens.text != "(":
                payload = self._payload()
            args = self.until(")", tokens.name) if tokens.skip("(") else ()
        try:
            found = statement(op, targets, args, dtype, payload)
        except ValueError as error:
            tokens.reset(mark)
            raise tokens.error(str(error)) from None
        tokens.end_line()
        return found

    def _targets(self) -> tuple[str, ...]:
        mark = self.tokens.mark()
        names = self.names()
        if self.tokens.skip("="):
            return names
        self.tokens.reset(mark)
        return ()

    def _payload(self) -> Any:
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

    def _load(self) -> tuple[Access, tuple[str, ...]]:
        name, index = self.element()
        args = indirect = self.indirect()
        masked = self.tokens.skip("if")
        if masked:
            args += (self.tokens.name(),)
            self.tokens.expect("else")
            args += (self.tokens.name(),)
        return Access(name, index, len(indirect), masked), args

    def _store(self) -> tuple[tuple[Access, str], tuple[str, ...]]:
        mode = self.tokens.name()
        name, index = self.element()
        indirect = self.indirect()
        self.tokens.expect("=")
        args = (self.tokens.name(), *indirect)
        masked = self.tokens.skip("if")
        if masked:
            args += (self.tokens.name(),)
        return (Access(name, index, len(indirect), masked), mode), args
