"""Kernels of several parts in Triton."""

from __future__ import annotations

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.plugin import Source
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.codegen import emit
from polyfuse_triton.target import known_target
from triton_grouped import grouped, results
from triton_interpreted import in_interpreter


def test_every_part_is_computed() -> None:
    assert in_interpreter(results, [3, 3000, 17, 3000, 1]) < 1e-5


def test_it_compiles_as_one_kernel() -> None:
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    source = emit(grouped([3, 3000, 17, 3000, 1]), None, known_target("sm_90"))
    meta = KernelMeta.parse(source.meta)
    assert source.text.count("@triton.jit") == 5  # equal parts once
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    assert compile_kernel(function, meta, 90, 0, False).code


def test_the_text(golden) -> None:
    source = emit(grouped([3, 3000, 17]), None, known_target("sm_90"))
    golden("triton/grouped.txt", f"{source.text}\n{source.meta}")
