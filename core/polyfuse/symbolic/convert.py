"""From torch's symbolic sizes (sympy) to index expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import sympy

from polyfuse.symbolic.extreme import maximum, minimum
from polyfuse.symbolic.index import IndexLike, host, product, symbol

Bounds = Callable[[Any], tuple[int, "int | None"]]


def from_sympy(expr: Any, bounds: Bounds) -> IndexLike:
    """The index of a sympy integer expression.

    Args:
        expr: a sympy expression over integer symbols, or an int.
        bounds: inclusive bounds of an expression: called for each symbol, and for each function that this
            algebra lacks.
    """
    if isinstance(expr, int):
        return expr
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        lo, hi = bounds(expr)
        return symbol(str(expr), lo, hi)
    if isinstance(expr, sympy.Add):
        total: IndexLike = 0
        for argument in expr.args:
            total = total + from_sympy(argument, bounds)
        return total
    if isinstance(expr, sympy.Mul) and all(a.is_integer for a in expr.args):
        return product(from_sympy(a, bounds) for a in expr.args)
    if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and int(expr.exp) > 0:
        return product([from_sympy(expr.base, bounds)] * int(expr.exp))
    name = type(expr).__name__
    arguments = expr.args
    if name == "FloorDiv" or name == "CleanDiv" or name == "IntTrueDiv_":
        return from_sympy(arguments[0], bounds) // from_sympy(arguments[1], bounds)
    if name == "ModularIndexing":
        base, divisor, modulus = (from_sympy(a, bounds) for a in arguments)
        return base // divisor % modulus
    if name in ("Mod", "PythonMod"):
        return from_sympy(arguments[0], bounds) % from_sympy(arguments[1], bounds)
    if name == "CeilDiv":
        return -((-from_sympy(arguments[0], bounds)) // from_sympy(arguments[1], bounds))
    if name in ("Max", "Min"):
        return (maximum if name == "Max" else minimum)(*(from_sympy(a, bounds) for a in arguments))
    if name == "Identity":
        return from_sympy(arguments[0], bounds)
    if name == "Abs" and arguments[0].is_integer:
        signed = from_sympy(arguments[0], bounds)
        return maximum(signed, -signed)
    lo, hi = bounds(expr)
    symbols = sorted(expr.free_symbols, key=str)
    return host(host_text(expr), (from_sympy(s, bounds) for s in symbols), lo, hi)


_FORMS: Final = {
    "FloorDiv": "({} // {})",
    "CleanDiv": "({} // {})",
    "CeilDiv": "(-(-{} // {}))",
    "Mod": "({} % {})",
    "PythonMod": "({} % {})",
    "IntTrueDiv": "({} / {})",
    "FloatTrueDiv": "({} / {})",
    "ModularIndexing": "({} // {} % {})",
    "LShift": "({} << {})",
    "RShift": "({} >> {})",
    "BitwiseFn_bitwise_and": "({} & {})",
    "BitwiseFn_bitwise_or": "({} | {})",
    "BitwiseFn_bitwise_xor": "({} ^ {})",
    "Identity": "{}",
    "TruncToInt": "math.trunc({})",
    "TruncToFloat": "float(math.trunc({}))",
    "FloorToInt": "math.floor({})",
    "CeilToInt": "math.ceil({})",
    "RoundToInt": "round({})",
    "RoundDecimal": "round({}, {})",
    "ToFloat": "float({})",
    "PowByNatural": "({} ** {})",
    "FloatPow": "({} ** {})",
    "Pow": "({} ** {})",
    "Where": "({1} if {0} else {2})",
    "Equality": "({} == {})",
    "Unequality": "({} != {})",
    "StrictLessThan": "({} < {})",
    "LessThan": "({} <= {})",
    "StrictGreaterThan": "({} > {})",
    "GreaterThan": "({} >= {})",
    "Abs": "abs({})",
    "Not": "(not {})",
}
"""What operations of sympy and torch are in Python, by the names of their classes, around their operands."""

_JOINED: Final = {"Add": " + ", "Mul": " * ", "And": " and ", "Or": " or "}
"""Operations with any number of operands, and what stands between these."""


def host_text(expr: Any) -> str:
    """A sympy expression as Python text, for what the index algebra has no word for.

    Raises:
        ValueError: a function in it has no form in Python.
    """
    name = type(expr).__name__
    if name == "Piecewise":
        return _cases(expr.args)
    if expr.is_Float:
        # sympy prints fewer digits than a number has, and one third of 30 would be 9.99
        return repr(float(expr))
    if expr.is_Rational and not expr.is_Integer:
        return f"({expr.p} / {expr.q})"
    parts = [host_text(a) for a in expr.args]
    if not parts:
        return {sympy.oo: "math.inf", -sympy.oo: "(-math.inf)"}.get(expr, str(expr))
    if name in _FORMS:
        return _FORMS[name].format(*parts)
    if name in _JOINED:
        return "(" + _JOINED[name].join(parts) + ")"
    if name in ("Max", "Min"):
        return f"{name.lower()}({', '.join(parts)})"
    if name.startswith("OpaqueUnaryFn_"):
        return f"math.{name.removeprefix('OpaqueUnaryFn_')}({parts[0]})"
    raise ValueError(
        f"the size expression {expr} uses {name}, which has no host form; report the model that made it"
    )


def _cases(pairs: Any) -> str:
    """The first value whose condition holds; what a boolean is as a number is written like this."""
    value, condition = pairs[0]
    text = host_text(value)
    if len(pairs) == 1 or condition == sympy.true:
        return text
    return f"({text} if {host_text(condition)} else {_cases(pairs[1:])})"
