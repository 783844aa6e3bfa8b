"""The byte code of a host program, which is stored beside its text: to compile the text takes 0.14 ms for
each kilobyte of it, longer than all else that is done with a stored program.

The table of inputs is no part of the code. Deep networks have hundreds of them, most of which look like
another one, and Python compiles each row for 24 microseconds.
"""

from __future__ import annotations

import importlib.util
import marshal
from types import CodeType
from typing import Any, Final

_VERSION = importlib.util.MAGIC_NUMBER
"""Of byte code: other versions of Python have others."""

_BEGIN: Final = "\nINPUTS = (\n"
_END: Final = "\n)\n"


def inputs_of(text: str) -> tuple[tuple[Any, ...], ...] | None:
    """The table of inputs in a program's text, of which each line is a row: the name first, and what the
    input must be. None where the text has no such lines.
    """
    start, end = _inputs_at(text)
    if not start:
        return None
    known: dict[str, tuple[Any, ...]] = {}
    rows: list[tuple[Any, ...]] = []
    for line in text[start:end].splitlines():
        name, _, rest = line.strip().removesuffix(",").removeprefix("('").partition("', ")
        found = known.get(rest)
        if found is None:
            found = known[rest] = eval(f"({rest}")
        rows.append((name, *found))
    return tuple(rows)


def _inputs_at(text: str) -> tuple[int, int]:
    """Where the rows of the table of inputs begin and end; zeros where there is none."""
    begin = text.find(_BEGIN) + len(_BEGIN)
    return (begin, text.index(_END, begin - 1)) if begin >= len(_BEGIN) else (0, 0)


def _without_inputs(text: str) -> str:
    """A program's text with as many empty lines instead of its table of inputs."""
    start, end = _inputs_at(text)
    if not start:
        return text
    lines = 1 + text.count("\n", start, end + len(_END) - 1)
    return text[: start - len(_BEGIN) + 1] + "\n" * lines + text[end + len(_END) - 1 :]


def stored_code(code: CodeType) -> bytes:
    """The byte code of a program, to be stored."""
    return _VERSION + marshal.dumps(_named(code, ""))


def code_of(text: str, filename: str, stored: bytes = b"") -> CodeType:
    """The code of a program, without its table of inputs.

    Args:
        filename: under which tracebacks and debuggers know it.
        stored: what `stored_code` returned for the text, of whatever version of Python; empty: nothing.
    """
    if not stored.startswith(_VERSION):
        return compile(_without_inputs(text), filename, "exec")
    code: CodeType = marshal.loads(stored[len(_VERSION) :])
    return _named(code, filename)


def _named(code: CodeType, filename: str) -> CodeType:
    inside = tuple(_named(item, filename) if isinstance(item, CodeType) else item for item in code.co_consts)
    return code.replace(co_filename=filename, co_consts=inside)
