"""Numbers made of sizes that are no integers, such as the ratio of two sizes, as scalar expressions."""

from __future__ import annotations

import ast
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const, index_value
from polyfuse.ir.types import DType
from polyfuse.rewrite import cast, make
from polyfuse.symbolic import Atom, Index, as_atom
from polyfuse.symbolic.index import atoms
from polyfuse.torch_compat.tracing import shapes

_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floor_div",
    ast.Mod: "remainder",
    ast.Pow: "pow",
}
_TO_INTEGER = ("trunc", "floor", "ceil", "round")
_OF_FLOAT = ("sqrt", "exp", "log", "log2", "sin", "cos", "tanh")


def size_number(index: Index) -> Expr:
    """The value of an index; one written in host text is computed in double precision or 64-bit integers."""
    if _is_unbacked_fraction(index):
        raise UnsupportedError("no kernel reads unbacked symbols that are floating-point numbers")
    atom = _host_atom(index)
    if atom is None:
        return index_value(index)
    return _value(ast.parse(atom.name, mode="eval").body, atom)


def is_integer(value: Any) -> bool:
    """Whether a number is an integer, or made of sizes in a way that gives one."""
    if not isinstance(value, Index):
        return isinstance(value, int)
    return _host_atom(value) is None and not _is_unbacked_fraction(value)


def _is_unbacked_fraction(index: Index) -> bool:
    """Whether the number is, or is made of, unbacked symbols that are floating-point numbers."""
    return any(atom.kind == "sym" and shapes.named_fraction(atom.name) for atom in atoms(index))


def _host_atom(index: Index) -> Atom | None:
    atom = as_atom(index)
    return atom if atom is not None and atom.kind == "host" else None


def _value(node: ast.expr, atom: Atom) -> Expr:
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        return const(node.value, DType.f64 if isinstance(node.value, float) else DType.i64)
    if isinstance(node, ast.Name):
        for symbol in atom.args:
            if str(symbol) == node.id:
                return index_value(symbol)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return make("neg", _value(node.operand, atom))
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        op = _ARITHMETIC[type(node.op)]
        left, right = _value(node.left, atom), _value(node.right, atom)
        if op in ("div", "pow") or DType.f64 in (left.dtype, right.dtype):
            left, right = cast(left, DType.f64), cast(right, DType.f64)
        return make(op, left, right)
    if isinstance(node, ast.Call) and not node.keywords:
        return _called(node, [_value(a, atom) for a in node.args], atom)
    raise UnsupportedError(f"the number {atom.name} has no scalar form")


def _called(node: ast.Call, values: list[Expr], atom: Atom) -> Expr:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name == "float":
        return cast(values[0], DType.f64)
    if name == "round" and len(values) > 1:
        # Python rounds the decimal number; a product with a power of ten may lie beyond the half
        raise UnsupportedError("no kernel rounds a number to decimal digits")
    if name in _TO_INTEGER:
        value = values[0]
        return cast(make(name, value), DType.i64) if value.dtype.is_float else value
    if name in _OF_FLOAT:
        return make(name, cast(values[0], DType.f64))
    if name == "abs":
        return make("abs", values[0])
    if name in ("min", "max"):
        kind = DType.f64 if any(v.dtype is DType.f64 for v in values) else DType.i64
        total = cast(values[0], kind)
        for value in values[1:]:
            total = make("minimum" if name == "min" else "maximum", total, cast(value, kind))
        return total
    raise UnsupportedError(f"the number {atom.name} has no scalar form")
