"""The texts of a few kernels, so that a change of the generator shows what it changes."""

from __future__ import annotations

import pytest

from polyfuse_triton.codegen import emit
from polyfuse_triton.target import known_target
from triton_kernels import kernel

NAMES = (
    *("softmax", "softmax_long", "rms_norm", "bias_gelu", "transpose", "dynamic", "sum_columns", "argmax"),
    *("scan_long", "scatter_mul_bf16"),
)


@pytest.mark.parametrize("name", NAMES)
def test_text(name, golden):
    source = emit(kernel(name), None, known_target("sm_90"))
    golden(f"triton/{name}.txt", f"{source.text}\n{source.meta}")
