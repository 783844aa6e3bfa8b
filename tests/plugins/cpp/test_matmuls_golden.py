"""The text of products, so that changes of it are seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cpp_kernels import backend
from cpp_matmuls import Matmul
from polyfuse.ir.types import DType

KERNELS = {
    "linear": (Matmul(8, 768, 768, right="bnk", bias=True, residual=True), "avx512"),
    "packed": (Matmul(300, 100, 600, left="bkm", dynamic="m"), "avx2"),
    "direct_bf16_result": (Matmul(2, 64, 48, right="bkn", out_dtype=DType.bf16), "avx512"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    matmul, isa = KERNELS[name]
    source = backend(isa).emit(matmul.kernel())
    golden(f"cpp/matmul_{name}.txt", f"{source.text}\n{source.meta}")
