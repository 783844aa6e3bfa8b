"""Sizes that packages write as text: which expressions there are, and what they come to."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from functools import cache
from types import CodeType
from typing import Any, Final

from polyfuse.aot.description import Size

__all__ = ["condition_holds", "size_names", "size_problem", "size_value"]

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

_LONGEST: Final = 10_000
_EXPONENT: Final = 8

_NODES: Final = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Name, ast.Constant),
    *(ast.Load, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div, ast.Mod, ast.Pow, ast.USub, ast.UAdd),
    *(ast.Not, ast.And, ast.Or, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)


@cache
def size_problem(text: Size) -> str:
    """Why a text is no expression over sizes; empty if it is one. Nothing in it is evaluated."""
    if isinstance(text, int):
        return ""
    if len(text) > _LONGEST:
        return "it is too long"
    try:
        tree = ast.parse(text, mode="eval")
        compile(tree, "<size>", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"it is no expression ({type(error).__name__})"
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            return f"it contains {type(node).__name__}"
        if isinstance(node, ast.Constant) and not isinstance(node.value, (int, float)):
            return "it contains a constant that is no number"
        if isinstance(node, ast.Name) and node.id.startswith("_"):
            return f"it names {node.id[:80]}"
        if isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        ):
            return "it calls something"
        if isinstance(node, ast.Pow):
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            power = node.right
            if not (isinstance(power, ast.Constant) and 0 <= power.value <= _EXPONENT):  # type: ignore[operator]
                return "it has a power that is no small number"
    return ""


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
