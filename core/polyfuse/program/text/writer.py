"""Names, values and lines of a generated Python module, and where its steps come from, in one line."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

import polyfuse.runtime as runtime
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.names import Names, plain_word
from polyfuse.base.text import shorten
from polyfuse.ir.nodes import Opaque, Origin, View
from polyfuse.program.steps import Ref
from polyfuse.symbolic import Index, IndexLike, python_text

_TABLES = "KERNELS OBJECTS INPUTS NAMES CHECKS ALIGNED GRAPH PARTITIONS SERIES VIEWS SEEN ALONE"
_MODULE = f"NAME DEVICE {_TABLES} math torch main"
_FUNCTIONS = "call call_partitioned call_python args given _"
_RESERVED = (*keyword.kwlist, *dir(builtins), *runtime.__all__, *_MODULE.split(), *_FUNCTIONS.split())
_PLAIN_HOST_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class Writer:
    """Writes the lines of one function after another, with names and globals that the module shares.

    Args:
        reserved: names that the text has as they are.

    Attributes:
        lines: of the function that is being written.
        helpers: functions of the runtime that the text names.
        globals: values computed when the module is loaded: text to name.
        objects: names of entries of the object table, and their keys.
        names: gives new names.
        variables: the Python name of each variable that has one by now.
        dead: names that the next line forgets.
        typed: of each cached block, dtype to the block seen as that.
    """

    def __init__(self, reserved: Iterable[str]) -> None:
        self.lines: list[str] = []
        self.helpers: set[str] = set()
        self.globals: dict[str, str] = {}
        self.objects: dict[str, str] = {}
        self.names = Names((*_RESERVED, *reserved))
        self.variables: dict[str, str] = {}
        self.dead: list[str] = []
        self.typed: dict[str, dict[str, str]] = {}
        self._shapes: dict[tuple[IndexLike, ...], str] = {}
        self._indent = "    "

    # Lines.

    def line(self, text: str) -> None:
        """Write a line at the present depth."""
        self.lines.append(self._indent + text)

    def enter(self, header: str) -> None:
        """Write what opens a block, which lasts until the function ends."""
        self.line(header)
        self._indent += "    "

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Write what opens a block, and what is written meanwhile into it."""
        outside = self._indent
        self.enter(header)
        yield
        self._indent = outside

    @contextmanager
    def function(self) -> Iterator[list[str]]:
        """The lines of a function of its own, which are those written meanwhile."""
        outside, self.lines = self.lines, []
        indent, self._indent = self._indent, "    "
        yield self.lines
        self.lines, self._indent = outside, indent

    def flush(self) -> None:
        """Forget what is dead: several names in one statement."""
        if self.dead:
            self.line(f"del {', '.join(self.dead)}")
            self.dead.clear()

    # Names.

    def variable(self, name: str) -> str:
        """The Python name of a variable."""
        found = self.variables.get(name)
        if found is not None:
            return found
        plain = plain_word(name)
        if plain != name:
            plain = plain_word(f"v_{name}")
        elif isinstance(vars(torch).get(name), torch.dtype):
            plain = f"{name}_"
        found = self.variables[name] = self.names.of(("variable", name), plain)
        return found

    def helper(self, name: str) -> str:
        """A function of the runtime, imported."""
        self.helpers.add(name)
        return name

    def constant(self, text: str, name: str) -> str:
        """A value computed once when the module is loaded."""
        if text not in self.globals:
            self.globals[text] = self.names.fresh(plain_word(name).strip("_"))
        return self.globals[text]

    def dtype(self, name: str) -> str:
        """The global that holds a dtype."""
        return self.constant(f"torch.{name}", name)

    # Values.

    def index(self, index: IndexLike) -> str:
        """A size expression."""
        return python_text(index)

    def shape(self, values: tuple[IndexLike, ...]) -> str:
        """A size or stride as a tuple."""
        found = self._shapes.get(values)
        if found is None:
            found = self._shapes[values] = tuple_text([self.index(v) for v in values])
        return found

    def view(self, view: View, function: str = "reinterpret_tensor") -> str:
        """A view made on the spot."""
        base = self.variable(view.buffer)
        if view.dtype is not None:
            base = self._as_dtype(view.buffer, self.dtype(str(view.dtype.torch).removeprefix("torch.")))
        offset = "" if view.offset == 0 else f", {self.index(view.offset)}"
        layout = f"{self.shape(view.size)}, {self.shape(view.stride)}"
        return f"{self.helper(function)}({base}, {layout}{offset})"

    def _as_dtype(self, buffer: str, dtype: str) -> str:
        """A buffer seen as another dtype."""
        base, typed = self.variable(buffer), self.typed.get(buffer)
        if typed is None:
            return f"{base}.view({dtype})"
        # a cached block has a buffer for nearly each kernel: it is seen as each type once
        if dtype not in typed:
            typed[dtype] = self.names.of(("typed", buffer, dtype), f"{base}_as_{dtype}")
            self.line(f"{typed[dtype]} = {base}.view({dtype})")
        return typed[dtype]

    def value(self, value: Any) -> str:
        """An operand or result.

        Raises:
            UnsupportedError: it has no text.
        """
        match value:
            case Ref():
                return self.variable(value.name)
            case View():
                return self.view(value)
            case Index():
                return self.index(value)
            case tuple() | list():
                return tuple_text(self.value(item) for item in value)
            case Opaque():
                return self.opaque(value)
            case float():
                return _float_text(value)
            case None | bool() | int() | str() | complex():
                return repr(value)
        if value is Ellipsis:
            return repr(value)
        if isinstance(value, _PLAIN_HOST_VALUES):
            text = f"torch.{value!r}" if isinstance(value, torch.device) else str(value)
            return self.constant(text, text.removeprefix("torch."))
        raise UnsupportedError(
            f"an operator has an argument of type {type(value).__name__}, which has no text",
            "lower it to an Opaque value with a key of the graph's object table",
        )

    def opaque(self, value: Opaque) -> str:
        """A value with a text of its own, or an entry of the object table."""
        if value.text:
            return self.constant(value.text, value.text.removeprefix("torch."))
        for name, key in self.objects.items():
            if key == value.key:
                return name
        name = self.variable(f"object_{len(self.objects)}")
        self.objects[name] = value.key
        return name


def tuple_text(items: Iterable[str]) -> str:
    """The tuple of some expressions."""
    parts = list(items)
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def _float_text(value: float) -> str:
    if value != value:
        return "math.nan"
    if value in (float("inf"), float("-inf")):
        return "math.inf" if value > 0 else "-math.inf"
    return repr(value)


_SHOWN_SOURCES = 3
_SHOWN_OPS = 8

_shown_source = lru_cache(1024)(shorten)
"""Equal layers have equal lines."""


def origin_text(origins: tuple[Origin, ...]) -> str:
    """Operators and source lines on one line."""
    if not origins:
        return "the compiler"
    ops = list(dict.fromkeys(o.op for o in origins))
    sources = list(dict.fromkeys(_shown_source(o.source) for o in origins if o.source))
    shown = ", ".join(ops[:_SHOWN_OPS])
    if len(ops) > _SHOWN_OPS:
        shown += f" and {len(ops) - _SHOWN_OPS} more"
    if not sources:
        return shown
    locations = "; ".join(sources[:_SHOWN_SOURCES])
    more = len(sources) - _SHOWN_SOURCES
    return f"{shown} at {locations}" + (f" and {more} more lines" if more > 0 else "")
