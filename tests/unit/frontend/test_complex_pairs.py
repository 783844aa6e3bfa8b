"""Complex operators that follow each other are computed on real and imaginary parts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from polyfuse.compiler.reports.report import last_reports
from polyfuse.frontend.rewrites.pairs.parts import PAIRS

Tensor = torch.Tensor

NOT_FINITE = [0.0, -0.0, 1.0, -2.5, float("inf"), float("-inf"), float("nan"), 1e38]


def rotary(x: Tensor, angles: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None, None]
    return torch.view_as_real(turned).flatten(-2)


def both(x: Tensor) -> Tensor:
    """A tensor whose last dimension holds pairs, as a complex one."""
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


def real(z: Tensor) -> Tensor:
    return torch.view_as_real(z)


CASES: dict[str, Callable[[Tensor], Any]] = {
    "product": lambda x: real(both(x) * both(x + 1)),
    "conjugate": lambda x: real(both(x).conj() * both(x.sin())),
    "sum and difference": lambda x: real(both(x) + both(x.cos()) - both(x.exp())),
    "sums of what the same tensor holds": lambda x: real(both(x) + both(x.flip(0)) - both(x.flip(1))),
    "a complex number": lambda x: real(both(x) * (2 - 3j) + 1j),
    "a real number": lambda x: real((both(x) * 2.0 + 1) / 4),
    "a real operand": lambda x: real(both(x) * x[..., ::2] + x[..., 1::2]),
    "an operand that is broadcast": lambda x: real(both(x) + x[:, :1] - x[0, 0]),
    "wider operand": lambda x: real(both(x) * x[..., ::2].double()),
    "a real divisor": lambda x: real(both(x) / -3),
    "length and angle": lambda x: (both(x * 2) * both(x)).abs() + (both(x) * both(x)).angle(),
    "real and imaginary": lambda x: (lambda z: z.real.sin() * z.imag)(both(x) * both(x + 1)),
    "a real part that is returned": lambda x: (both(x) * both(x + 1)).real,
    "sign": lambda x: real((both(x) * both(x)).sgn()),
    "polar": lambda x: real(torch.polar(x[..., ::2].abs(), x[..., 1::2]) * both(x)),
    "of two parts": lambda x: real(torch.complex(x[..., ::2], x[..., 1::2]) * both(x)),
    "of parts that are broadcast": lambda x: real(torch.complex(x[..., ::2], x[:1, 1::2]) * both(x)),
    "sum over a part that is broadcast": lambda x: real(
        torch.complex(x[..., ::2], x[:1, 1::2]).sum(0) * both(x) + (both(x)[:1] * 1j + x[:, :4]).sum(0)
    ),
    "parts that are broadcast and joined": lambda x: real(
        torch.cat([torch.complex(x[..., ::2], x[:1, 1::2]) * 1j, both(x)[:1] + x[:, :4]])
    ),
    "choice": lambda x: real(torch.where(x[..., ::2] > 0, both(x) * 1j, both(x.sin()))),
    "views": lambda x: real((both(x) * 1j).t()[1:].unsqueeze(0).expand(2, -1, -1) * both(x)[:, 1:].t()),
    "joined": lambda x: real(torch.cat([both(x) * 1j, both(x).conj(), both(x)])),
    "reduction": lambda x: real((both(x) * both(x.cos())).sum(0) + (both(x) * 1j).mean(0)),
    "gathered": lambda x: real((both(x) * 1j)[torch.tensor([2, 0])] * both(x)[1:]),
    "rounded to single": lambda x: real((both(x.double()) * 1j).to(torch.complex64) * both(x)),
    "of reals": lambda x: real(x[..., ::2].to(torch.complex64) * both(x)),
    "a complex result, too": lambda x: (lambda z: (z, real(z * both(x) * 2j)))(both(x) * both(x)),
    "a view of a result": lambda x: (lambda z: (z.t(), z, real(z * both(x) * 2j)))(both(x) * both(x)),
    "two results in one memory": lambda x: (lambda z: (real(z), z))(both(x) * 1j * both(x)),
    "a view of the input": lambda x: (real(both(x)), real(both(x) * 1j * both(x))),
    "a transform": lambda x: torch.fft.rfft(x).abs() + real(both(x) * both(x)).sum(),
    "no elements": lambda x: real(both(x)[:0] * both(x + 1)[:0]),
}  # fmt: skip

WHOLE: dict[str, Callable[[Tensor], Any]] = {
    "a transform": lambda z: torch.fft.fft(z).abs(),
    "one operator": lambda z: z * 2,
    "division": lambda z: real(z / z.real),
}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    dynamic = options.pop("dynamic", False)
    given = {"backends": ["interpreter"], "graph_cache": False, **options}
    return torch.compile(function, backend="polyfuse", options=given, dynamic=dynamic)


def rewrites() -> int:
    """How many calls of the last graph became calls on parts."""
    return dict(last_reports()[-1].rewrites).get("compute-in-pairs", 0)


@pytest.mark.quick(8)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_agrees_with_eager_mode(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(3, 8, dtype=dtype)
    function, wanted = CASES[name], CASES[name](x.clone())
    found = compiled(function)(x)
    torch.testing.assert_close(found, wanted)
    assert rewrites() > 0
    for result, expected in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted)), strict=True):
        assert result.stride() == expected.stride()


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "name", ["product", "conjugate", "a real number", "length and angle", "joined", "reduction"]
)
def test_sizes_may_vary(name: str) -> None:
    call = compiled(CASES[name], dynamic=True)
    for rows in (3, 5, 2):
        x = torch.randn(rows, 2 * rows)
        torch.testing.assert_close(call(x), CASES[name](x))
    assert rewrites() > 0


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "name",
    [
        *("product", "a real number", "a complex number", "a real divisor", "conjugate", "a real operand"),
        *("sum and difference", "sums of what the same tensor holds"),
    ],
)
def test_what_is_not_finite(name: str) -> None:
    x = torch.tensor([[a, b] for a in NOT_FINITE for b in NOT_FINITE]).reshape(4, -1)
    torch.testing.assert_close(compiled(CASES[name])(x), CASES[name](x), equal_nan=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "name", ["product", "conjugate", "views", "length and angle", "real and imaginary", "sign"]
)
def test_gradients(name: str) -> None:
    first, second = (torch.randn(3, 8, dtype=torch.float64).requires_grad_() for _ in range(2))
    second.data.copy_(first.data)
    for function, x in ((compiled(CASES[name]), first), (CASES[name], second)):
        function(x).square().sum().backward()
    torch.testing.assert_close(first.grad, second.grad)


def test_a_rotary_embedding_makes_no_call() -> None:
    x, angles = torch.randn(2, 5, 3, 8), torch.randn(2, 4)
    found = compiled(rotary)(x, angles)
    torch.testing.assert_close(found, rotary(x, angles))
    assert rewrites() > 0 and not last_reports()[-1].fallbacks


def test_aliases_stay_aliases() -> None:
    x = torch.randn(3, 8)
    z, memory = compiled(lambda x: (lambda z: (z, real(z)))(both(x) * 1j * both(x)))(x)
    z.zero_()
    assert not memory.any()
    view, _ = compiled(CASES["a view of the input"])(x)
    assert view.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("name", WHOLE)
def test_what_would_need_as_many_calls_stays_whole(name: str) -> None:
    z = torch.randn(3, 8, dtype=torch.complex64)
    torch.testing.assert_close(compiled(WHOLE[name])(z), WHOLE[name](z))
    assert not rewrites()


def test_rounding_of_eager_mode_keeps_them_whole() -> None:
    x = torch.randn(3, 8)
    torch.testing.assert_close(compiled(CASES["product"], numerics="eager")(x), CASES["product"](x))
    assert not rewrites()


def test_a_step_that_cannot_be_made_leaves_the_graph_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(parts: Any, node: Any) -> Any:
        return parts.call(torch.ops.aten.view.default, parts.of(node.args[0])[0], [7])

    monkeypatch.setitem(PAIRS, torch.ops.aten._conj.default, refused)
    x = torch.randn(3, 8)
    torch.testing.assert_close(compiled(CASES["conjugate"])(x), CASES["conjugate"](x))
    assert not rewrites()


STEPS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "product": lambda a, b, x: a * b,
    "sum": lambda a, b, x: a + b,
    "difference": lambda a, b, x: a - b,
    "conjugate": lambda a, b, x: a.conj(),
    "number": lambda a, b, x: a * (0.5 - 2j) + 1j,
    "quotient": lambda a, b, x: a / 3,
    "transposed": lambda a, b, x: a.t(),
    "reversed": lambda a, b, x: a.flip(0),
    "of columns": lambda a, b, x: a + b.sum(0),
    "sign": lambda a, b, x: a.sgn(),
    "choice": lambda a, b, x: torch.where(x > 0, a, b),
    "joined": lambda a, b, x: torch.cat([a[:2], b[2:]]),
    "real": lambda a, b, x: a * x + x[:1],
    "broadcast": lambda a, b, x: a[:1].expand(4, 4) * b[:, 1:2],
    "made": lambda a, b, x: torch.complex(x, x[:1]) - a.abs() * b,
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 8))])
def test_chains_of_operators(seed: int) -> None:
    """Of any two earlier results each; with gradients, and sizes that vary, of some."""
    choose = random.Random(f"{seed} {torch.randint(1 << 30, ())}")
    chosen = [
        (choose.choice(list(STEPS)), choose.random(), choose.random()) for _ in range(choose.randint(2, 7))
    ]

    def chain(x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        values = [both(x), z]
        for name, first, second in chosen:
            a, b = values[int(first * len(values))], values[int(second * len(values))]
            values.append(STEPS[name](a, b, x[:, :4]))
        return real(values[-1].resolve_conj()), values[-2].abs(), values[-1] * values[-2]

    gradients = bool(seed % 2)
    given = torch.randn(4, 8, dtype=torch.float64), torch.randn(4, 4, dtype=torch.complex128)
    first, second = ([t.clone().requires_grad_(gradients) for t in given] for _ in range(2))
    wanted, found = chain(*first), compiled(chain, dynamic=seed % 4 == 2)(*second)
    torch.testing.assert_close(found, wanted, msg=lambda text: f"{chosen}: {text}")
    if gradients:
        sides = (sum(t.abs().square().sum() for t in results) for results in (found, wanted))
        ours, theirs = (
            torch.autograd.grad(side, inputs, allow_unused=True)
            for side, inputs in zip(sides, (second, first), strict=True)
        )
        for one, other in zip(ours, theirs, strict=True):
            if other is not None:
                torch.testing.assert_close(one, other, msg=lambda text: f"{chosen}: {text}")
