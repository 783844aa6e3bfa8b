"""Expressions at positions given by data.

A value that is still an expression is read at a few such positions by computing it there, and nowhere else.
(The loss of a language model reads one logarithm of a probability for each row of tens of thousands.) A sum
whose terms are zero but at one such position is that term.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyfuse.ir.expr import Expr, const, index_value, loads, rewrite, walk
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import all_of
from polyfuse.lowering.value import TensorValue
from polyfuse.rewrite import cast, make, where
from polyfuse.symbolic import (
    Index,
    IndexLike,
    axis,
    axis_name,
    axis_size,
    coefficient,
    free_axes,
    product,
    substitute,
)


@dataclass(frozen=True)
class _AxisValue:
    """A value that replaces an axis variable, and how many values that can have."""

    value: Expr
    extent: IndexLike


def read_at(
    ctx: LoweringContext, value: TensorValue, positions: Sequence[IndexLike | Expr], count: IndexLike
) -> Expr | None:
    """The element of a lazy value at `positions`, which are in range, for `count` readers; None where the
    value had better be stored, or where its indices allow no such positions.
    """
    if value.body is None:
        return None
    given: dict[str, _AxisValue] = {}
    indices: list[IndexLike] = []
    for d, (position, extent) in enumerate(zip(positions, value.size, strict=True)):
        if isinstance(position, Expr):
            given[f"at{d}"] = _AxisValue(position, extent)
            indices.append(axis(f"at{d}", extent))
        else:
            indices.append(position)
    element = value.at(indices)
    scattered = sum(1 for load in loads(element) if _names(load.index, given))
    if ctx.sizes.hint(count) * max(1, scattered) > ctx.sizes.hint(product(value.size)):
        return None
    return _with_values(element, given)


def only_term(value: Expr, variable: Index) -> Expr | None:
    """The sum of `value` along an axis, where that is zero but at one position of it; None where it is
    not."""
    if value.op == "cast":
        term = only_term(value.args[0], variable)
        return None if term is None else cast(term, value.dtype)
    if value.op != "where" or value.args[2].op != "const" or value.args[2].value != 0:
        return None
    conditions = _conditions(value.args[0])
    name, extent = axis_name(variable), axis_size(variable)
    for condition in conditions:
        position = _equal_to(condition, variable)
        if position is None or any(name in free_axes(_index_of(e)) for e in walk(position)):
            continue
        inside = make(
            "bitwise_and", make("ge", position, index_value(0)), make("lt", position, index_value(extent))
        )
        nearest = make("minimum", make("maximum", position, index_value(0)), index_value(extent - 1))
        others = [c for c in conditions if c is not condition]
        chosen = _with_values(
            where(all_of(*others) if others else inside, *value.args[1:]), {name: _AxisValue(nearest, extent)}
        )
        if chosen is None:
            return None
        # a sum begins with a zero that has no sign
        term = make("add", chosen, const(0.0, chosen.dtype)) if value.dtype.is_float else chosen
        return where(inside, term, value.args[2])
    return None


def _conditions(root: Expr) -> list[Expr]:
    """What must all hold."""
    if root.op != "bitwise_and":
        return [root]
    return [found for part in root.args for found in _conditions(part)]


def _equal_to(condition: Expr, variable: Index) -> Expr | None:
    """What an axis variable is compared with."""
    if condition.op == "eq":
        for own, other in (condition.args, condition.args[::-1]):
            if own.op == "index" and own.index == variable:
                return other
    return None


def _with_values(root: Expr, given: Mapping[str, _AxisValue]) -> Expr | None:
    """`root` with values instead of axis variables; None where an index is not linear in them."""
    return rewrite(root, lambda expr: _moved(expr, given)) if _is_linear(root, given) else None


def _names(index: IndexLike, given: Mapping[str, _AxisValue]) -> list[str]:
    used = free_axes(index)
    return [name for name in given if name in used]


def _index_of(expr: Expr) -> IndexLike:
    return expr.index if expr.op in ("load", "index") else 0


def _is_linear(root: Expr, given: Mapping[str, _AxisValue]) -> bool:
    """Whether every index multiplies and adds the variables, and does nothing else with them."""
    for expr in walk(root):
        index = _index_of(expr)
        for name in _names(index, given):
            factor = coefficient(index, name)
            if factor is None or free_axes(factor):
                return False
    return True


def _moved(expr: Expr, given: Mapping[str, _AxisValue]) -> Expr:
    """An expression whose operands are moved already."""
    index = _index_of(expr)
    names = _names(index, given)
    if not names:
        return expr
    if expr.op == "index":
        return _number(index, names, given)
    count = expr.access.indirect
    renamed = {name: axis(f"@{count + k}", given[name].extent) for k, name in enumerate(names)}
    operands = (*expr.args[:count], *(given[name].value for name in names), *expr.args[count:])
    access = expr.access._replace(index=substitute(index, renamed), indirect=count + len(names))
    return Expr("load", operands, expr.dtype, access)


def _number(index: IndexLike, names: Sequence[str], given: Mapping[str, _AxisValue]) -> Expr:
    """An index as a value."""
    total = index_value(substitute(index, dict.fromkeys(names, 0)))
    for name in names:
        factor = coefficient(index, name)
        assert factor is not None
        total = make("add", total, make("mul", given[name].value, index_value(factor)))
    return total
