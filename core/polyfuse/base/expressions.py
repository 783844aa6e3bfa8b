"""Which texts from files are expressions that may be evaluated: arithmetic on names, and calls of a few named
functions. Nothing in a text is evaluated to find out.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_LONGEST: Final = 10_000
# A number raised to more, or shifted by more, takes long to compute and is no size.
_EXPONENT: Final = 1024

_NODES: Final = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Name),
    *(ast.Constant, ast.Attribute, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div, ast.Mod),
    *(ast.Pow, ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor, ast.USub, ast.UAdd, ast.Not),
    *(ast.And, ast.Or, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)


@dataclass(frozen=True)
class Grammar:
    """Which expressions there are.

    Attributes:
        calls: functions that may be called; `math.*` allows all of a module.
        modules: whose attributes may be named.
        strings: whether texts may be arguments of calls.
    """

    calls: frozenset[str]
    modules: frozenset[str] = frozenset()
    strings: bool = False


@lru_cache(maxsize=4096)
def expression_problem(text: str, grammar: Grammar) -> str:
    """Why a text is no expression of a grammar; empty if it is one."""
    if len(text) > _LONGEST:
        return "it is too long"
    try:
        tree = ast.parse(text, mode="eval")
        compile(tree, "<expression>", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"it is no expression ({type(error).__name__})"
    return next((problem for node in ast.walk(tree) if (problem := _problem(node, grammar))), "")


def _problem(node: ast.AST, grammar: Grammar) -> str:
    if not isinstance(node, _NODES):
        return f"it contains {type(node).__name__}"
    if isinstance(node, ast.Constant):
        kinds = (int, float, str) if grammar.strings else (int, float)
        return "" if isinstance(node.value, kinds) else "it contains a constant that is no number"
    if isinstance(node, ast.Name):
        return f"it names {node.id[:80]}" if node.id.startswith("_") else ""
    if isinstance(node, ast.Attribute):
        right = isinstance(node.value, ast.Name) and node.value.id in grammar.modules
        return "" if right and not node.attr.startswith("_") else f"it names {node.attr[:80]}"
    if isinstance(node, ast.Call):
        name = _dotted(node.func)
        known = name in grammar.calls or f"{name.partition('.')[0]}.*" in grammar.calls
        return "" if name and known and not node.keywords else f"it calls {name[:80] or 'something'}"
    if isinstance(node, ast.BinOp):
        return _too_much(node)
    return ""


def _too_much(node: ast.BinOp) -> str:
    """What would take long, or much memory: powers of powers, repeated texts."""
    strings = any(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in (node.left, node.right))
    if strings:
        return "it computes with texts"
    if not isinstance(node.op, (ast.Pow, ast.LShift)):
        return ""
    right = node.right
    if isinstance(right, ast.Constant) and isinstance(right.value, (int, float)):
        return "" if abs(right.value) <= _EXPONENT else "it has a large power"
    inner = any(isinstance(n, ast.BinOp) and isinstance(n.op, (ast.Pow, ast.LShift)) for n in ast.walk(right))
    return "it has a power of powers" if inner else ""


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""
