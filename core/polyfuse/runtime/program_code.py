"""The byte code of a host program, which is stored beside its text: to compile the text takes 0.14 ms for
each kilobyte of it, longer than all else that is done with a stored program.
"""

from __future__ import annotations

import importlib.util
import marshal
from types import CodeType

_VERSION = importlib.util.MAGIC_NUMBER
"""Of byte code: other versions of Python have others."""


def stored_code(code: CodeType) -> bytes:
    """The byte code of a program, to be stored."""
    return _VERSION + marshal.dumps(_named(code, ""))


def code_of(text: str, filename: str, stored: bytes = b"") -> CodeType:
    """The code of a program.

    Args:
        filename: under which tracebacks and debuggers know it.
        stored: what `stored_code` returned for the text, of whatever version of Python; empty: nothing.
    """
    if not stored.startswith(_VERSION):
        return compile(text, filename, "exec")
    code: CodeType = marshal.loads(stored[len(_VERSION) :])
    return _named(code, filename)


def _named(code: CodeType, filename: str) -> CodeType:
    inside = tuple(_named(item, filename) if isinstance(item, CodeType) else item for item in code.co_consts)
    return code.replace(co_filename=filename, co_consts=inside)
