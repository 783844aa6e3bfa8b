"""Reading IR text: what all its forms share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyfuse.base.expressions import Grammar, expression_problem
from polyfuse.ir.nodes import Buffer, Opaque, View
from polyfuse.ir.text.index import read_index, read_symbol
from polyfuse.ir.text.tokens import Tokens
from polyfuse.ir.types import DType
from polyfuse.symbolic import Atom, Index, IndexLike, as_atom

# Types, devices, layouts and numbers that JSON lacks.
_VALUES = Grammar(frozenset({"torch.device", "complex", "float"}), frozenset({"torch", "math"}), strings=True)


class Reader:
    """A reading position, and the variables and buffers declared so far."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.declared: dict[str, Atom] = {}
        self.known: dict[str, Atom] = {}
        self.buffers: dict[str, Buffer] = {}

    def symbols(self) -> None:
        """A declaration of symbols, where one stands."""
        if self.tokens.skip("symbols"):
            for atom in self.several(lambda: read_symbol(self.tokens)):
                self.declared[atom.name] = atom
            self.known = dict(self.declared)
            self.tokens.end_line()

    def loops(self, *axes: tuple[Index, ...]) -> None:
        """Declare the axes of a node or kernel, and no others."""
        found = [as_atom(a) for group in axes for a in group]
        self.known = {**self.declared, **{a.name: a for a in found if a is not None}}

    def index(self) -> IndexLike:
        """An index."""
        return read_index(self.tokens, self.known)

    def several(self, read: Callable[[], Any]) -> list[Any]:
        """Parts with commas between them, at least one."""
        found = [read()]
        while self.tokens.skip(","):
            found.append(read())
        return found

    def until(self, end: str, read: Callable[[], Any]) -> tuple[Any, ...]:
        """A list that may be empty, up to and with a closing sign."""
        found: list[Any] = []
        while not self.tokens.skip(end):
            found.append(read())
            if not self.tokens.skip(","):
                self.tokens.expect(end)
                break
        return tuple(found)

    def names(self) -> tuple[str, ...]:
        """Names with commas between them."""
        return tuple(self.several(self.tokens.name))

    def dtype(self) -> DType:
        """A scalar type."""
        word = self.tokens.text
        if word not in DType.__members__:
            raise self.tokens.error(f"{word!r} is not a scalar type")
        return DType[self.tokens.name()]

    def open(self) -> None:
        """The brace that opens a block."""
        self.tokens.expect("{")
        self.tokens.end_line()

    # Values.

    def _words(self) -> dict[str, Callable[[], Any]]:
        return {
            "none": lambda: None,
            "true": lambda: True,
            "false": lambda: False,
            "host": self._opaque,
            "object": lambda: Opaque(key=self.tokens.string()),
            "dtype": self.dtype,
            "complex": self._complex,
        }

    def value(self) -> Any:
        """An argument: nested tuples of plain values, indices, views and host values."""
        tokens = self.tokens
        if tokens.kind == "string":
            return tokens.string()
        if tokens.kind == "number" or tokens.text in ("-", "inf", "nan"):
            return tokens.number()
        if tokens.skip("("):
            return self.until(")", self.value)
        if tokens.skip("["):
            return list(self.until("]", self.value))
        if tokens.skip("<"):
            found = self.index()
            tokens.expect(">")
            return found
        if tokens.skip("&"):
            return self._view()
        for word, read in self._words().items():
            if tokens.skip(word):
                return read()
        raise tokens.error(f"{tokens.text!r} begins no value")

    def _opaque(self) -> Opaque:
        """A value that the host program names: what is read is data, and does nothing when evaluated."""
        text = self.tokens.string()
        problem = expression_problem(text, _VALUES)
        if problem:
            raise self.tokens.error(f"{text[:80]!r} is no value of the host: {problem}")
        return Opaque(text=text)

    def _complex(self) -> complex:
        self.tokens.expect("(")
        real, imaginary = self.until(")", self.tokens.number)
        return complex(real, imaginary)

    def _view(self) -> View:
        tokens = self.tokens
        name = tokens.name()
        if not tokens.skip("["):
            if name not in self.buffers:
                raise tokens.error(f"buffer {name!r} is not declared")
            return self.buffers[name].view()
        size = self.until(";", self.index)
        stride = self.until(";", self.index)
        offset = self.index()
        dtype = self.dtype() if tokens.skip(";") else None
        tokens.expect("]")
        return View(name, size, stride, offset, dtype)
