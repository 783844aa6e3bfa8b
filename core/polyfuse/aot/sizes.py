"""Sizes that packages write as text: which expressions there are, and what they come to."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import cache
from types import CodeType
from typing import Any, Final

from polyfuse.aot.description import Size
from polyfuse.base.expressions import Grammar, expression_problem

_FUNCTIONS: Final[Mapping[str, Any]] = {
    "__builtins__": {},
    "Eq": operator.eq,
    "Ne": operator.ne,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: -(-a // b),
    "Max": max,
    "Min": min,
    "max": max,
    "min": min,
    "And": lambda *parts: all(parts),
    "Or": lambda *parts: any(parts),
    "Not": operator.not_,
    "Abs": abs,
    "true": True,
    "false": False,
}
"""Names that expressions of sizes may use besides symbols."""

_GRAMMAR: Final = Grammar(frozenset(_FUNCTIONS) - {"__builtins__", "true", "false"})


def size_problem(text: Size) -> str:
    """Why a text is no expression over sizes; empty if it is one. Nothing in it is evaluated."""
    return "" if isinstance(text, int) else expression_problem(text, _GRAMMAR)


@cache
def size_names(text: Size) -> tuple[str, ...]:
    """The symbols in a size."""
    if isinstance(text, int):
        return ()
    return tuple(name for name in _compiled(text).co_names if name not in _FUNCTIONS)


def size_value(size: Size, symbols: Mapping[str, int]) -> int:
    """The value of a size; -1 where a symbol in it is not known."""
    if isinstance(size, int):
        return size
    if any(name not in symbols for name in size_names(size)):
        return -1
    return int(eval(_compiled(size), dict(_FUNCTIONS), dict(symbols)))


def condition_holds(text: str, symbols: Mapping[str, int]) -> bool:
    """Whether a condition on sizes is true; it is not where a symbol in it is not known."""
    if any(name not in symbols for name in size_names(text)):
        return True
    return bool(eval(_compiled(text), dict(_FUNCTIONS), dict(symbols)))


@cache
def _compiled(text: str) -> CodeType:
    problem = size_problem(text)
    if problem:
        raise ValueError(f"the size {text[:80]!r} cannot be read: {problem}")
    return compile(text, f"<size {text}>", "eval")
