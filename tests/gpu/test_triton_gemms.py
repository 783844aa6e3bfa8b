"""Matmuls and convolutions that the Triton backend generates, on a real device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polyfuse.compiler.reports.report import last_reports

pytestmark = pytest.mark.gpu

BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64


def random(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda").to(dtype)


def small(*sizes: int) -> torch.Tensor:
    return torch.randint(-100, 100, sizes, device="cuda", dtype=torch.int8)


def last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(memory_format=torch.channels_last)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "linear and gelu": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        lambda: (random(1000, 512, dtype=BF16), random(768, 512, dtype=BF16), random(768, dtype=BF16)),
    ),
    "odd sizes": (torch.mm, lambda: (random(333, 777, dtype=BF16), random(777, 555, dtype=BF16))),
    "transposed": (
        lambda a, b: a.t() @ b.t(),
        lambda: (random(330, 200, dtype=F16), random(170, 330, dtype=F16)),
    ),
    "f32": (torch.mm, lambda: (random(200, 330), random(330, 170))),
    "f64": (torch.mm, lambda: (random(200, 330, dtype=F64), random(330, 170, dtype=F64))),
    "batched": (torch.bmm, lambda: (random(30, 200, 64, dtype=BF16), random(30, 64, 170, dtype=BF16))),
    "vector": (torch.mv, lambda: (random(2000, 1000), random(1000))),
    "few rows": (
        lambda x, w: F.silu(F.linear(x, w)),
        lambda: (random(16, 4096, dtype=BF16), random(1024, 4096, dtype=BF16)),
    ),
    "prologue": (
        lambda a, b: (a.relu() * 2) @ b,
        lambda: (random(200, 512, dtype=BF16), random(512, 256, dtype=BF16)),
    ),
    "bytes": (torch._int_mm, lambda: (small(256, 512), small(512, 384))),
    "bytes transposed": (lambda a, b: torch._int_mm(a, b.t()), lambda: (small(256, 512), small(384, 512))),
    "convolution": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        lambda: (random(8, 64, 28, 28, dtype=BF16), random(96, 64, 3, 3, dtype=BF16), random(96, dtype=BF16)),
    ),
    "convolution, channels last": (
        lambda x, w: F.conv2d(x, w, padding=1, stride=2),
        lambda: (last(random(8, 64, 28, 28, dtype=F16)), last(random(96, 64, 3, 3, dtype=F16))),
    ),
    "grouped convolution": (
        lambda x, w: F.conv2d(x, w, padding=1, groups=2),
        lambda: (random(2, 32, 28, 28), random(64, 16, 3, 3)),
    ),
}
NEAR = {BF16: 1.6e-2, F16: 4e-3, torch.float32: 1e-3, F64: 1e-10}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_generated_matmuls(name, dynamic):
    function, operands = CASES[name]
    given = operands()
    options = {"gemm": "generated", "backends": "triton", "strict": True}
    found = torch.compile(function, backend="polyfuse", dynamic=dynamic, options=options)(*given)
    wide = [a.double() for a in given] if given[0].is_floating_point() else list(given)
    wanted = function(*wide).to(found.dtype)
    if not found.dtype.is_floating_point:
        assert torch.equal(found, wanted)
        return
    near = NEAR[found.dtype]
    torch.testing.assert_close(found, wanted, rtol=near, atol=near * float(wanted.abs().mean()))
    assert {launch.backend for report in last_reports() for launch in report.launches} == {"triton"}
