"""Sizes and conditions of packages, which are texts of Python, as C++ over an array of symbols;
and texts as C."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from polyfuse.base.errors import UnsupportedError
from polyfuse.plugin.host_library import SizeText

_OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "({0} + {1})",
    ast.Sub: "({0} - {1})",
    ast.Mult: "({0} * {1})",
    ast.FloorDiv: "size_div({0}, {1})",
    ast.Mod: "size_mod({0}, {1})",
    ast.Pow: "size_power({0}, {1})",
    ast.Eq: "({0} == {1})",
    ast.NotEq: "({0} != {1})",
    ast.Lt: "({0} < {1})",
    ast.LtE: "({0} <= {1})",
    ast.Gt: "({0} > {1})",
    ast.GtE: "({0} >= {1})",
    ast.USub: "(-{0})",
    ast.UAdd: "{0}",
    ast.Not: "(!{0})",
}

_PAIRS: Mapping[str, str] = {
    "Max": "index_max({0}, {1})",
    "max": "index_max({0}, {1})",
    "Min": "index_min({0}, {1})",
    "min": "index_min({0}, {1})",
    "Mod": "size_mod({0}, {1})",
    "PythonMod": "size_mod({0}, {1})",
    "FloorDiv": "size_div({0}, {1})",
    "CleanDiv": "size_div({0}, {1})",
    "CeilDiv": "size_ceil({0}, {1})",
    "Eq": "({0} == {1})",
    "Ne": "({0} != {1})",
    "And": "({0} && {1})",
    "Or": "({0} || {1})",
}

_SINGLE: Mapping[str, str] = {"Abs": "size_abs({0})", "Not": "(!{0})"}


class SizePrinter:
    """Prints texts over symbols, each of which is an element of the array `s`."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self._elements = {name: f"s[{position}]" for position, name in enumerate(symbols)}

    def text(self, size: SizeText) -> str:
        """A size or a condition.

        Raises:
            UnsupportedError: there is something in it that has no form in integers.
        """
        if isinstance(size, int):
            return _number(size)
        return self._node(_parsed(size), size)

    def names(self, size: SizeText) -> tuple[str, ...]:
        """The symbols in a text, each once."""
        if isinstance(size, int):
            return ()
        found = (node.id for node in ast.walk(_parsed(size)) if isinstance(node, ast.Name))
        return tuple(dict.fromkeys(name for name in found if name in self._elements))

    def element(self, name: str) -> str:
        """Where a symbol's value is."""
        return self._elements[name]

    def _node(self, node: ast.AST, whole: str) -> str:
        def parts(*nodes: ast.AST) -> list[str]:
            return [self._node(part, whole) for part in nodes]

        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return _number(int(node.value))
        if isinstance(node, ast.Name) and node.id in self._elements:
            return self._elements[node.id]
        if isinstance(node, ast.Name) and node.id in ("true", "false"):
            return node.id
        if isinstance(node, (ast.BinOp, ast.UnaryOp)) and type(node.op) in _OPERATORS:
            operands = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.operand,)
            return _OPERATORS[type(node.op)].format(*parts(*operands))
        if isinstance(node, ast.Compare) and all(type(op) in _OPERATORS for op in node.ops):
            sides = parts(node.left, *node.comparators)
            pairs = zip(node.ops, sides, sides[1:], strict=False)
            return _joined([_OPERATORS[type(op)].format(left, right) for op, left, right in pairs], " && ")
        if isinstance(node, ast.BoolOp):
            return _joined(parts(*node.values), " && " if isinstance(node.op, ast.And) else " || ")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords and node.args:
            return self._call(node.func.id, parts(*node.args), whole)
        raise _unsupported(whole)

    def _call(self, name: str, parts: list[str], whole: str) -> str:
        if name in _SINGLE and len(parts) == 1:
            return _SINGLE[name].format(*parts)
        if name in _PAIRS and (len(parts) == 2 or name in ("Max", "max", "Min", "min", "And", "Or")):
            return _chained(_PAIRS[name].format, parts)
        raise _unsupported(whole)


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise _unsupported(text) from error


def _number(value: int) -> str:
    return f"INT64_C({value})" if abs(value) < 1 << 62 else ("INT64_MAX" if value > 0 else "INT64_MIN")


def _joined(parts: Sequence[str], between: str) -> str:
    return f"({between.join(parts)})"


def _chained(pair: Callable[..., str], parts: Sequence[str]) -> str:
    result = parts[0]
    for part in parts[1:]:
        result = pair(result, part)
    return result


def _unsupported(text: str) -> UnsupportedError:
    return UnsupportedError(f"the size {text} has no form in C++")


def quoted(text: str) -> str:
    """A text as a C string."""
    plain = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "replace")
    )
    return f'"{"".join(plain)}"'
