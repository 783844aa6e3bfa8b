"""The kernel that only multiplies."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from polyfuse_bench.matrix_rate import kernel_text, matrix_rate

from requirements import needs_nvcc


def test_no_rate_where_it_is_not_known() -> None:
    assert matrix_rate("cpu", "bfloat16") is None


@pytest.mark.quick(1)
@needs_nvcc
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_its_matmuls_are_not_made_one_after_the_other(dtype: str, tmp_path: Path) -> None:
    text = tmp_path / "rate.cu"
    text.write_text(kernel_text(dtype))
    command = [
        "nvcc",
        "-arch=sm_90a",
        "-cubin",
        "-Xptxas",
        "-v",
        "-o",
        str(tmp_path / "rate.cubin"),
        str(text),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "serialized" not in done.stderr
    assert "0 bytes spill stores" in done.stderr
