"""Elementary functions of the library against double precision, over all magnitudes and at the edges."""

from __future__ import annotations

import math

import pytest
import torch

from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

OPTIONS = {"backends": ["halide", "interpreter"]}

EDGES = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 1.0, -1.0)


def arguments(generator: torch.Generator) -> torch.Tensor:
    """Numbers of every exponent, of usual size, and near multiples of pi/2, which are hard to reduce."""
    bits = torch.randint(-(2**31), 2**31, (20_000,), generator=generator).to(torch.int32).view(torch.float32)
    usual = (torch.rand(20_000, generator=generator) - 0.5) * 200
    quarters = (torch.arange(20_000) * (math.pi / 2)).float()
    limits = torch.tensor([3999.999, 4000.0, -4000.0, 4000.001, 4096.0, *EDGES])
    return torch.cat((bits, usual, quarters, -quarters, limits))


FUNCTIONS = {
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "atan": torch.atan,
    "rsqrt": torch.rsqrt,
}


@pytest.fixture(scope="module")
def found() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    x = arguments(torch.Generator().manual_seed(int(torch.randint(2**31, ()))))

    def every(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(function(x) for function in FUNCTIONS.values())

    results = torch.compile(every, backend="polyfuse", options=OPTIONS)(x)
    return x, dict(zip(FUNCTIONS, results, strict=True))


@pytest.mark.quick(7)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_agree_with_double_precision(
    found: tuple[torch.Tensor, dict[str, torch.Tensor]], name: str
) -> None:
    x, results = found
    expected = FUNCTIONS[name](x.double()).float()
    actual = results[name]
    assert torch.equal(actual.isnan(), expected.isnan())
    # eager mode's sigmoid has no subnormal results either
    least = 1e-38 if name == "sigmoid" else 1e-45
    torch.testing.assert_close(actual, expected, rtol=2e-6, atol=least, equal_nan=True)
    zero = expected == 0
    assert torch.equal(actual[zero].signbit(), expected[zero].signbit())


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["tanh", "atan", "sinh", "asinh", "atanh", "erf", "sin"])
def test_functions_of_sixteen_bits(name: str) -> None:
    """LLVM takes the wrong operand for the mask where a sign is put on and the argument stays in one step."""
    x = torch.randn(400).bfloat16() * 0.5
    x[:3] = torch.tensor([-0.0, math.nan, 0.25])
    function = getattr(torch, name)
    found = torch.compile(lambda x: function(x), backend="polyfuse", options=OPTIONS)(x)
    torch.testing.assert_close(found, function(x), equal_nan=True)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", [*FUNCTIONS, "sinh", "cosh", "asinh", "acosh", "atanh", "asin", "acos"])
def test_functions_of_few_numbers(name: str) -> None:
    """Fewer than fill a vector: LLVM takes other liberties with single numbers."""
    function = getattr(torch, name)

    def every(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(function(x) for x in given)

    given = [torch.randn(count) * 4 for count in (1, 2, 3)]
    given += [torch.tensor([-5000.5]), torch.tensor([2.0, 1e9])]
    found = torch.compile(every, backend="polyfuse", options=OPTIONS)(*given)
    for actual, expected in zip(found, every(*given), strict=True):
        torch.testing.assert_close(actual, expected, rtol=4e-6, atol=2e-6, equal_nan=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ("fmod", "remainder"))
def test_remainders_of_sixteen_bits_and_what_is_asked_of_them(name: str) -> None:
    function = getattr(torch, name)
    a = (torch.randn(300) * 50).to(torch.bfloat16)
    b = (torch.randn(300) * 3).to(torch.bfloat16)
    edges = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3.0])
    a[:36], b[:36] = edges.repeat(6), edges.repeat_interleave(6)
    rest = torch.compile(lambda a, b: function(a, b), backend="polyfuse", options=OPTIONS)
    assert torch.equal(rest(a, b).nan_to_num(7), function(a, b).nan_to_num(7))


def test_the_greater_of_a_remainder_and_a_number() -> None:
    a, b, c = torch.randn(100) * 50, torch.randn(100) * 3, torch.randn(100)
    function = torch.compile(
        lambda a, b, c: torch.maximum(torch.fmod(a, b), c), backend="polyfuse", options=OPTIONS
    )
    assert torch.equal(function(a, b, c), torch.maximum(torch.fmod(a, b), c))


def test_powers_that_vanish() -> None:
    x = torch.cat((torch.linspace(-106, -88, 4001), torch.tensor([-math.inf, -1e30, -104.0])))

    def powers(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.exp(x), torch.exp2(x - 45)

    found = torch.compile(powers, backend="polyfuse", options=OPTIONS)(x)
    for actual, wide in zip(found, (torch.exp(x.double()), torch.exp2((x - 45).double())), strict=True):
        # the same multiple of the least number, or the next one
        assert ((actual.double() - wide) / 2.0**-149).abs().max() < 1.01
        assert (actual[-3:-1] == 0).all() and not actual[wide < 2.0**-150].any() and actual[:-3].any()


def test_of_equal_zeros_the_first_wins() -> None:
    """As in eager mode, whose result has that one's sign. NaN stays what loses."""
    x = torch.tensor([0.0, -0.0, math.nan, -0.0, 1.0] * 5)
    y = torch.tensor([-0.0, 0.0, -0.0, math.nan, math.nan] * 5)

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.fmin(x, y), torch.fmax(x, y)

    found = torch.compile(both, backend="polyfuse", options={**OPTIONS, "strict": True})(x, y)
    for got, wanted in zip(found, both(x, y), strict=True):
        assert torch.equal(got, wanted) and torch.equal(got.signbit(), wanted.signbit())


def test_lgamma_is_zero_where_it_should_be() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, -0.0, math.inf, -1.5])
    for dtype in (torch.float32, torch.float16):
        found = torch.compile(torch.lgamma, backend="polyfuse", options=OPTIONS)(x.to(dtype))
        torch.testing.assert_close(found, torch.lgamma(x.to(dtype)))
        assert torch.equal(found[:2], torch.zeros(2, dtype=dtype))
