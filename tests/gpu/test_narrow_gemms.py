"""Products of 8-bit numbers and of groups of rows in graphs on a real device: what is beside them fuses, and
results and gradients are those of eager mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from polyfuse.compiler.reports.report import last_reports

pytestmark = pytest.mark.gpu

BF16, F8 = torch.bfloat16, torch.float8_e4m3fn
Function = Callable[..., Any]
ROWS, DEPTH, COLUMNS, GROUPS = 256, 512, 384, 4


@pytest.fixture(autouse=True)
def narrow_floats() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip(
            "the GPU is older than Hopper (9.0), with which the products of narrow floats and of groups began"
        )


def random(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda").to(dtype)


def small(*sizes: int) -> torch.Tensor:
    return torch.randint(-100, 100, sizes, device="cuda", dtype=torch.int8)


def ends() -> torch.Tensor:
    """Where each group of rows ends: one is empty."""
    return torch.tensor([64, 64, 192, ROWS], device="cuda", dtype=torch.int32)


def one() -> torch.Tensor:
    return torch.ones((), device="cuda")


def scaled(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A layer whose input is made narrow, with one scale for each matrix."""
    narrow = (x * 2).clamp(-400, 400).to(F8)
    return torch._scaled_mm(narrow, w.t(), a, b, out_dtype=BF16).relu() + 1


def scaled_rows(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same with a scale for each row, which is found from it."""
    scale = x.abs().amax(-1, keepdim=True) / 448
    return torch._scaled_mm((x / scale).to(F8), w.t(), scale, b, out_dtype=BF16) * 0.5


def quantised(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A product of integers between a quantisation and its reverse."""
    narrow = (x / scale).round().clamp(-128, 127).to(torch.int8)
    return (torch._int_mm(narrow, w.t()).float() * scale).relu()


def grouped(x: torch.Tensor, w: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Rows in groups, each with a matrix of its own."""
    return torch._grouped_mm((x * 2).to(BF16), w, offs=at).relu() * 3


def scaled_grouped(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """The same of 8-bit floats, with a scale for each row and each column."""
    scale = x.abs().amax(-1).float() / 448
    narrow = (x.float() / scale[:, None]).to(F8)
    return torch._scaled_grouped_mm(narrow, w.transpose(1, 2), scale, b, offs=at, out_dtype=BF16) + 1


CASES: dict[str, tuple[Function, Callable[[], tuple[torch.Tensor, ...]]]] = {
    "one scale": (
        scaled,
        lambda: (random(ROWS, DEPTH), random(COLUMNS, DEPTH).to(F8), one() * 0.5, one() * 0.25),
    ),
    "scales of rows": (
        scaled_rows,
        lambda: (random(ROWS, DEPTH), random(COLUMNS, DEPTH).to(F8), random(1, COLUMNS).abs()),
    ),
    "integers": (quantised, lambda: (random(ROWS, DEPTH), small(COLUMNS, DEPTH), one() / 40)),
    "groups": (grouped, lambda: (random(ROWS, DEPTH), random(GROUPS, DEPTH, COLUMNS, dtype=BF16), ends())),
    "groups of 8-bit floats": (
        scaled_grouped,
        lambda: (
            random(ROWS, DEPTH),
            random(GROUPS, COLUMNS, DEPTH).to(F8),
            random(GROUPS, COLUMNS).abs(),
            ends(),
        ),
    ),
}


@pytest.mark.parametrize("mode", ["default", "generated"])
@pytest.mark.parametrize("name", CASES)
def test_beside_eager_mode(name: str, mode: str) -> None:
    function, operands = CASES[name]
    given = operands()
    options = {"strict": True, **({} if mode == "default" else {"gemm": mode})}
    found = torch.compile(function, backend="polyfuse", dynamic=False, options=options)(*given)
    wanted = function(*given)
    near = 2e-2 * float(wanted.float().abs().mean())
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=near)
    launched = [launch for report in last_reports() for launch in report.launches]
    # what makes the operand is one kernel, and what is done with the result another
    assert 1 <= len(launched) <= (4 if name == "groups of 8-bit floats" else 3)


def test_gradients_of_groups() -> None:
    at = ends()
    x, w = random(ROWS, DEPTH, dtype=BF16), random(GROUPS, DEPTH, COLUMNS, dtype=BF16)

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(x * 2, w, offs=at).relu()

    weight = random(ROWS, COLUMNS, dtype=BF16)
    results = []
    for function in (torch.compile(layer, backend="polyfuse", dynamic=False), layer):
        given = [t.clone().requires_grad_() for t in (x, w)]
        results.append(torch.autograd.grad(function(*given), given, weight))
    for got, true in zip(*results, strict=True):
        torch.testing.assert_close(got, true, rtol=2e-2, atol=2e-2 * float(true.float().abs().mean()))


@pytest.mark.parametrize("rows", [1, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_an_eight_bit_weight_is_read_as_it_is_stored(rows: int, dtype: torch.dtype) -> None:
    x, w, scale = random(rows, 1024, dtype=dtype), small(768, 1024), random(768, 1, dtype=dtype)

    def function(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(torch.nn.functional.linear(x, w.to(x.dtype) * scale))

    torch._dynamo.reset()
    found, truth = (
        torch.compile(function, backend="polyfuse")(x, w, scale),
        function(x.double(), w, scale.double()),
    )
    off, usual = ((t.double() - truth).norm() / truth.norm() for t in (found, function(x, w, scale)))
    assert off <= 2 * usual + 1e-6
    assert not last_reports()[-1].calls
