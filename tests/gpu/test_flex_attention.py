"""Flexible attention on a real device: values and gradients beside eager mode in f32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from triton_flex import CASES, Case, operands, place_tables, results_of, runner

pytestmark = pytest.mark.gpu

LARGE = replace(CASES["bf16"], queries=1024, keys=1024, heads=4, depth=128)
MORE = {**CASES, "large": LARGE, "f16": replace(LARGE, dtype=torch.float16, depth=64)}


def check(case: Case, mode: str = "default") -> None:
    place_tables("cuda")
    given, function = operands(case, "cuda"), runner(case, "cuda")
    compiled = torch.compile(function, backend="polyfuse", dynamic=case.dynamic, mode=mode)
    found = results_of(compiled, given, case)
    wanted = results_of(function, [t.float() for t in given], case)
    near = 3e-2 if case.dtype is not torch.float32 else 1e-4
    for got, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            got.float(), right.float(), rtol=near, atol=near * float(right.abs().max())
        )


@pytest.mark.parametrize("name", MORE)
def test_beside_eager_mode(name, recwarn):
    check(MORE[name])
    assert not [w for w in recwarn if "polyfuse" in str(w.message)]


def test_recorded():
    check(LARGE, "reduce-overhead")
