"""Symbolic shapes: expressions of sizes, hints, ranges, what is known and what must be guarded.

An expression here is a sympy expression over torch's own functions, or a plain int. Functions that take a
`shape_env` accept None for graphs without symbols.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sympy
import torch
from sympy.printing.str import StrPrinter
from torch.fx.experimental.symbolic_shapes import ShapeEnv

_UNHINTED = 64
"""Guess for a size known only when the program runs: large enough to parallelise, small enough to be
harmless.
"""


def is_symbolic(value: object) -> bool:
    """True for a SymInt, SymFloat or SymBool, whether or not it has become constant meanwhile."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def expr_of(value: Any) -> Any:
    """The sympy expression of a symbolic number; plain numbers and expressions are returned as they are.

    A symbolic number that has become constant gives a plain Python number.
    """
    if not is_symbolic(value):
        return value
    expr = value.node.expr
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if isinstance(expr, sympy.Float):
        return float(expr)
    if expr is sympy.true or expr is sympy.false:
        return bool(expr)
    return expr


def exprs_of(values: Iterable[Any]) -> tuple[Any, ...]:
    """`expr_of` over a size or stride."""
    return tuple(expr_of(v) for v in values)


def free_symbols(value: Any) -> tuple[sympy.Symbol, ...]:
    """Symbols of a number, expression, size or tensor (size, stride and offset), by name."""
    if isinstance(value, torch.Tensor):
        found: set[Any] = set()
        for part in (*value.shape, *value.stride(), value.storage_offset()):
            found.update(getattr(expr_of(part), "free_symbols", ()))
    elif isinstance(value, tuple | list | torch.Size):
        found = {s for part in value for s in free_symbols(part)}
    else:
        found = set(getattr(expr_of(value), "free_symbols", ()))
    return tuple(sorted(found, key=lambda s: (len(s.name), s.name)))


def unbacked_symbols(value: Any) -> tuple[sympy.Symbol, ...]:
    """Unbacked symbols: their value comes from data, such as the result of `item` or `nonzero`."""
    return tuple(s for s in free_symbols(value) if _is_unbacked_symbol(s))


def is_unbacked(value: Any) -> bool:
    """True if any symbol of `value` comes from data."""
    return bool(unbacked_symbols(value))


def replaced_by(shape_env: ShapeEnv | None, value: Any) -> tuple[sympy.Symbol, Any] | None:
    """The unbacked symbol that `value` was traced as, and what replaced it since: a number, or an
    expression of other symbols, that a check in the program says it equals. None where nothing did."""
    traced = value.node._expr
    if not (isinstance(traced, sympy.Symbol) and _is_unbacked_symbol(traced)):
        return None
    known = simplify(shape_env, value.node.expr)
    return None if isinstance(known, sympy.Symbol) and known == traced else (traced, known)


def equality(symbol: sympy.Symbol, known: Any) -> Any:
    """The condition that a symbol has a value, as an expression in which nothing is put in."""
    return sympy.Eq(symbol, known, evaluate=False)


def is_unbacked_name(name: str) -> bool:
    """Whether a symbol of this name is one whose value comes from data."""
    return _is_unbacked_symbol(sympy.Symbol(name))


def named_fraction(name: str) -> bool:
    """Whether a symbol of this name is one whose value is a floating-point number."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    return symbol_is_type(sympy.Symbol(name), (SymT.FLOAT, SymT.UNBACKED_FLOAT))


def compares_fractions(shape_env: ShapeEnv) -> bool:
    """Whether a guard holds for some values of a floating-point number alone that does not come from data."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    found = {symbol for guard in shape_env.guards for symbol in guard.expr.free_symbols}
    return any(symbol_is_type(symbol, SymT.FLOAT) for symbol in found)


def _is_unbacked_symbol(symbol: sympy.Symbol) -> bool:
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    return symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT))


def simplify(shape_env: ShapeEnv | None, expr: Any) -> Any:
    """`expr` with everything the shape environment learned put in; may become a plain number."""
    if shape_env is None or not isinstance(expr, sympy.Basic):
        return expr
    result = shape_env.simplify(expr)
    if isinstance(result, sympy.Float):
        return float(result)
    return int(result) if isinstance(result, sympy.Integer) else result


def hint(shape_env: ShapeEnv | None, value: Any, fallback: int | None = None) -> Any:
    """The value for the example inputs, without guarding on it.

    Unbacked symbols have none: then `fallback`, or a mid-sized guess inside the known range.
    """
    expr = expr_of(value)
    known = _hint(shape_env, expr)
    if known is not None:
        return known
    if fallback is not None:
        return fallback
    low, high = value_range(shape_env, expr)
    guess = _UNHINTED if low is None else max(low, _UNHINTED)
    return guess if high is None else min(high, guess)


def _hint(shape_env: ShapeEnv | None, expr: Any) -> Any:
    if not isinstance(expr, sympy.Basic):
        return expr
    known = expr
    if shape_env is not None and not known.is_number:
        # Two rounds: replacements may map a symbol to others that have values.
        known = shape_env.replace(known).xreplace(shape_env.backed_var_to_val)
    if known is sympy.true or known is sympy.false:
        return bool(known)
    if not known.is_number:
        return None
    return int(known) if known.is_integer else float(known)


def value_range(shape_env: ShapeEnv | None, value: Any) -> tuple[int | None, int | None]:
    """Lower and upper bound, each None if unbounded; no guard is added."""
    expr = expr_of(value)
    if not isinstance(expr, sympy.Basic):
        return int(expr), int(expr)
    if shape_env is None:
        return (int(expr), int(expr)) if expr.is_Integer else (None, None)
    bounds = shape_env.bound_sympy(expr)
    if bounds is None:  # the length of ragged tensors, which is a name and no number
        return None, None
    return finite_range(bounds)


def _finite(bound: Any) -> int | None:
    # torch's substitute for the largest size is as good as no bound.
    if not isinstance(bound, sympy.Integer) or abs(int(bound)) >= 2**62:
        return None
    return int(bound)


def statically_known(shape_env: ShapeEnv | None, condition: Any) -> bool:
    """True if the condition holds for every input the graph may get; never adds a guard."""
    expr = expr_of(condition)
    if isinstance(expr, bool) or expr is sympy.true or expr is sympy.false:
        return bool(expr)
    if shape_env is None:
        return False
    return bool(shape_env._maybe_evaluate_static(expr) == sympy.true)


def is_one(shape_env: ShapeEnv | None, expr: Any) -> bool:
    """True if a sympy expression is one for the example inputs, and the graph is guarded by that; never adds
    a guard. Tracing a broadcast guards it, and leaves the expression as it is."""
    return _hint(shape_env, expr) == 1 and statically_known(shape_env, sympy.Eq(expr, 1))


def guard(shape_env: ShapeEnv | None, condition: Any) -> bool:
    """Whether the condition holds for the example inputs; a graph compiled on this answer is reused only
    where the answer is the same. Raises torch's data-dependent error when the condition depends on data."""
    expr = expr_of(condition)
    if isinstance(expr, bool) or expr is sympy.true or expr is sympy.false:
        return bool(expr)
    if shape_env is None:
        raise ValueError(f"condition {expr} has symbols but the graph has no shape environment.")
    return bool(shape_env.evaluate_expr(expr))


def condition_texts(shape_env: ShapeEnv | None, arguments: Any) -> tuple[str, ...]:
    """What must be true of the sizes of `arguments`, as text: calls of functions such as `Not` stand where
    Python's operators would be those for bits. What follows from sizes that were put in for symbols is left
    out.
    """
    if shape_env is None:
        return ()
    known = set(free_symbols(arguments))
    found: dict[str, None] = {}
    for guard in shape_env.guards:
        for part in sympy.And.make_args(shape_env.replace(guard.expr)):
            if part is not sympy.true and known.issuperset(part.free_symbols):
                found[_ConditionPrinter().doprint(part)] = None
    return tuple(found)


class _ConditionPrinter(StrPrinter):
    def _print_And(self, expr: Any) -> str:
        return self._called("And", expr)

    def _print_Or(self, expr: Any) -> str:
        return self._called("Or", expr)

    def _print_Not(self, expr: Any) -> str:
        return self._called("Not", expr)

    def _called(self, name: str, expr: Any) -> str:
        return f"{name}({', '.join(self._print(argument) for argument in expr.args)})"


def finite_range(bounds: Any) -> tuple[int | None, int | None]:
    """Lower and upper bound of a range that torch made, each None if unbounded."""
    return _finite(bounds.lower), _finite(bounds.upper)
