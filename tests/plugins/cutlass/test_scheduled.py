"""Kernels as the scheduler makes them from models: each is taken apart, tiled, and right on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from cutlass_on_host import run_on_host
from gemm_kernels import kernels_of
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.kit import match
from polyfuse_cutlass.space import configs
from polyfuse_cutlass.target import Target
from polyfuse_cutlass.tiling import Tiling
from requirements import needs_gxx

pytestmark = needs_gxx


def R(*size: int) -> torch.Tensor:
    return torch.randn(size).bfloat16()


def two(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = F.linear(x, w, b)
    return z, F.silu(z.float())


CASES = {
    "linear": (F.linear, (R(64, 64), R(48, 64), R(48))),
    "gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (R(4, 16, 64), R(48, 64), R(48))),
    "residual": (lambda x, w, b, y: F.linear(x, w, b) + y, (R(20, 64), R(48, 64), R(48), R(20, 48))),
    "two results": (two, (R(24, 64), R(48, 64), R(48))),
    "bmm": (lambda a, b: torch.bmm(a, b) * 0.5, (R(6, 32, 64), R(6, 64, 48))),
    "one row": (F.linear, (R(1, 64), R(48, 64), R(48))),
    "weight gradient": (lambda a, b: a.t() @ b, (R(64, 40), R(64, 136))),
    "mask": (lambda a, b: (a @ b).tril(), (R(32, 64), R(64, 32))),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", CASES)
def test_scheduled_kernels(name, tmp_path):
    function, args = CASES[name]
    (kernel,) = (k for k in kernels_of(function, *args) if match(k))
    kernel = replace(
        kernel, device="cuda", args=tuple(replace(a, aligned=a.kind != "size") for a in kernel.args)
    )
    tiling = Tiling.of(configs(kernel, Target())[0])
    given = [torch.randn(int(a.numel)).to(a.dtype.torch) for a in kernel.args]
    wanted = [value.clone() for value in given]
    run_on_host(kernel, given, tiling, tmp_path)
    run_kernel(kernel, wanted)
    for found, expected in zip(given, wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
