"""A conversion to 16 bits that the program writes rounds, whatever is fused with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

PROGRAMS: dict[str, Callable[[Tensor, torch.dtype], Any]] = {
    "and back": lambda x, d: x.to(d).float(),
    "of a result": lambda x, d: (x.to(d), x.to(d).float()),
    "copied": lambda x, d: x.to(d).clone().float(),
    "transposed": lambda x, d: x.to(d).t().contiguous().float(),
    "joined": lambda x, d: torch.cat([x.to(d), x.to(d)]).float(),
    "padded": lambda x, d: torch.nn.functional.pad(x.to(d), (1, 1)).float(),
    "gathered": lambda x, d: x.to(d)[:, [3, 1]].float(),
    "chosen": lambda x, d: torch.where(x > 0, x.to(d), 0).float(),
    "clamped": lambda x, d: torch.relu(-x.to(d)).float(),
    "promoted": lambda x, d: x.to(d) + torch.ones(70),
    "copied over": lambda x, d: torch.empty_like(x).copy_(x.to(d)),
    "by a copy": lambda x, d: torch.empty_like(x, dtype=d).copy_(x).float(),
    "reduced": lambda x, d: x.to(d).float().amax(-1),
    "after a reduction": lambda x, d: (x.amax(-1), (x - x.amax(-1, keepdim=True)).to(d).float()),
}
COMPUTED: dict[str, Callable[[Tensor, torch.dtype], Any]] = {
    "computed with": lambda x, d: (x.to(d) * 1.1).float(),
    "computed with twice": lambda x, d: ((x.to(d) + 1) * 1.1, (x.to(d) + 1).float()),
}


def check(
    program: Callable[[Tensor, torch.dtype], Any], dtype: torch.dtype, backend: str, numerics: str
) -> None:
    torch._dynamo.reset()
    x = torch.linspace(-3, 3, 37 * 70).view(37, 70)
    options = {"backends": [backend], "numerics": numerics, "strict": True}
    found = torch.compile(program, backend="polyfuse", options=options)(x, dtype)
    torch.testing.assert_close(found, program(x, dtype), rtol=0, atol=0)


@pytest.mark.quick(1)
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_conversions_round(name: str, numerics: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        check(PROGRAMS[name], dtype, "interpreter", numerics)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", COMPUTED)
def test_eager_rounding_is_exact_between_operators(name: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        check(COMPUTED[name], dtype, "interpreter", "eager")


@pytest.mark.quick(3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["linear", "convolution", "depthwise"])
def test_sums_and_what_follows_them_are_rounded_once(kind: str, dtype: torch.dtype) -> None:
    """Also where decompositions convert in between."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = {
        "linear": (torch.nn.Linear(16, 24), torch.nn.ReLU6()),
        "convolution": (torch.nn.Conv2d(16, 24, 1), torch.nn.BatchNorm2d(24), torch.nn.ReLU6()),
        "depthwise": (torch.nn.Conv2d(16, 16, 3, groups=16), torch.nn.BatchNorm2d(16), torch.nn.ReLU6()),
    }
    model = torch.nn.Sequential(*layers[kind]).eval().to(dtype)
    x = torch.randn(9, 16) if kind == "linear" else torch.randn(1, 16, 9, 9)
    x = x.to(dtype) if kind == "linear" else x.to(dtype).to(memory_format=torch.channels_last)
    options = {"gemm": "known" if kind == "depthwise" else "generated", "strict": True}
    with torch.no_grad():
        found = torch.compile(model, backend="polyfuse", options=options)(x)
        exact = model.double()(x.double())
    torch.testing.assert_close(found, exact.to(dtype), rtol=0.51 * torch.finfo(dtype).eps, atol=1e-6)


def test_generated_code_rounds() -> None:
    for name in ("of a result", "transposed", "after a reduction"):
        check(PROGRAMS[name], torch.bfloat16, "cpp", "fast")


DECOMPOSED: dict[str, Callable[[Tensor], Tensor]] = {
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (70,)),
    "group norm": lambda x: torch.nn.functional.group_norm(x[None], 37),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.3),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
}


@pytest.mark.parametrize("name", DECOMPOSED)
def test_a_result_is_one_number_for_all_readers(name: str) -> None:
    """Of an operator that ends with a conversion, a widened result less itself is zero (seed 82000431)."""
    for dtype in (torch.float16, torch.bfloat16):
        torch._dynamo.reset()
        x = torch.linspace(-3, 3, 37 * 70).view(37, 70).to(dtype)

        def difference(x: Tensor) -> Tensor:
            y = DECOMPOSED[name](x)
            return y.float() - y

        found = torch.compile(difference, backend="polyfuse", options={"backends": ["interpreter"]})(x)
        assert not found.any()
