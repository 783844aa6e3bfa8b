"""What torch writes into sizes, as text that the host computes."""

from __future__ import annotations

import math

import pytest
import sympy
from torch.utils._sympy import functions

from polyfuse.symbolic.convert import from_sympy, host_text
from polyfuse.symbolic.text import evaluate

a, b = (sympy.Symbol(name, integer=True) for name in ("a", "b"))
VALUES = [(7, 2), (-7, 2), (1, 3), (64, 5), (0, 1)]


def value(expr: sympy.Basic, numbers: tuple[int, int]) -> object:
    return eval(host_text(expr), {"math": math}, dict(zip("ab", numbers, strict=True)))


@pytest.mark.parametrize("numbers", VALUES)
@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        (functions.FloorDiv(a, b), lambda a, b: a // b),
        (functions.CeilDiv(a, b), lambda a, b: -(-a // b)),
        (functions.PythonMod(a, b), lambda a, b: a % b),
        (functions.ModularIndexing(a, b, 3), lambda a, b: a // b % 3),
        (functions.LShift(a, b), lambda a, b: a << b),
        (functions.RShift(a, b), lambda a, b: a >> b),
        (functions.BitwiseFn_bitwise_and(a, b), lambda a, b: a & b),
        (functions.BitwiseFn_bitwise_or(a, b), lambda a, b: a | b),
        (functions.BitwiseFn_bitwise_xor(a, b), lambda a, b: a ^ b),
        (functions.IntTrueDiv(a, b), lambda a, b: a / b),
        (functions.TruncToInt(functions.IntTrueDiv(a, b)), lambda a, b: int(a / b)),
        (functions.TruncToFloat(functions.IntTrueDiv(a, b)), lambda a, b: float(int(a / b))),
        (functions.RoundToInt(functions.IntTrueDiv(a, b)), lambda a, b: round(a / b)),
        (functions.RoundDecimal(functions.IntTrueDiv(a, b), 1), lambda a, b: round(a / b, 1)),
        (functions.TruncToInt(functions.ToFloat(3 * a) * (1 / 3)), lambda a, b: int(3 * a * (1 / 3))),
        (functions.ToFloat(a) * (0.1 + 0.2) + 1e-17, lambda a, b: a * (0.1 + 0.2) + 1e-17),
        (functions.ToFloat(a) * sympy.Rational(2, 7), lambda a, b: a * (2 / 7)),
        (functions.Where(sympy.Lt(a, b), a, b), lambda a, b: a if a < b else b),
        (sympy.Piecewise((1, sympy.Eq(a, 1)), (0, True)), lambda a, b: int(a == 1)),
        (sympy.Piecewise((a, a > b), (b, a < 1), (7, True)), lambda a, b: a if a > b else b if a < 1 else 7),
        (sympy.Not(sympy.Or(a > b, sympy.Eq(a, 1)), evaluate=False), lambda a, b: not (a > b or a == 1)),
        (sympy.And(a > b, sympy.Ne(a, 7)), lambda a, b: a > b and a != 7),
        (functions.Max(a, b) + functions.Min(a, b) * 2, lambda a, b: max(a, b) + 2 * min(a, b)),
        (sympy.Abs(a) ** 2, lambda a, b: a * a),
    ],
    ids=lambda value: str(value) if isinstance(value, sympy.Basic) else "",
)  # fmt: skip
def test_text_has_the_value(expr, wanted, numbers) -> None:
    assert value(expr, numbers) == wanted(*numbers)


def test_a_condition_becomes_a_number_of_the_host() -> None:
    index = from_sympy(2 * sympy.Piecewise((1, sympy.Eq(a, 1)), (0, True)) + b, lambda _: (0, None))
    assert [evaluate(index, {"a": a, "b": 3}) for a in (0, 1, 2)] == [3, 5, 3]


def test_a_distance_is_known_to_the_algebra() -> None:
    """Kernels need no number of the host for it."""
    index = from_sympy(sympy.Abs(a - b), lambda _: (0, None))
    assert "host" not in str(index)
    assert [evaluate(index, {"a": a, "b": 3}) for a in (0, 3, 7)] == [3, 0, 4]


@pytest.mark.parametrize("number", [1.5, math.inf, -math.inf])
def test_fractions_are_compared_with_infinity(number: float) -> None:
    x = sympy.Symbol("x", real=None)
    for wanted, limit in ((number == math.inf, sympy.oo), (number == -math.inf, -sympy.oo)):
        assert eval(host_text(sympy.Eq(x, limit)), {"math": math}, {"x": number}) is wanted


def test_what_has_no_text_is_named() -> None:
    with pytest.raises(ValueError, match="uses gamma, which has no host form"):
        host_text(sympy.gamma(a))
