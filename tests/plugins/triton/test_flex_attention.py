"""Flexible attention: forward and backward beside eager mode, and through Triton's compiler."""

from __future__ import annotations

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse_triton.build.meta import KernelMeta
from triton_flex import CASES, REFUSED, flex_faults, flex_sources, refused_faults
from triton_interpreted import in_interpreter
from triton_written import FLEX_DEFECTS, faults_of_checked_attention


@pytest.mark.parametrize(
    "name", [n if n == "odd" else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_beside_eager_mode(name):
    assert in_interpreter(flex_faults, name) == []


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_left_to_eager_mode_alone(name):
    assert in_interpreter(refused_faults, name) == []


@pytest.mark.parametrize("arch", [pytest.param(80, marks=pytest.mark.slow), 90])
@pytest.mark.parametrize("name", [pytest.param("bf16", marks=pytest.mark.slow), "soft cap"])
def test_compiles_without_spilling(name, arch):
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    sources = in_interpreter(flex_sources, name)
    assert len(sources) == 3
    for text, meta in sources:
        function = function_of(text.replace("POLYFUSE_KERNEL", "k_test"), "k_test")
        made = compile_kernel(function, KernelMeta.parse(meta), arch, 0, False)
        assert made.spilled_bytes == 0
        assert "mma" in made.ptx or name != "bf16"


@pytest.mark.parametrize(
    "name", ["soft cap", *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n != "soft cap")]
)
def test_the_checker_compares_honest_kernels(name):
    assert in_interpreter(faults_of_checked_attention, [name], False) == []


@pytest.mark.parametrize(
    "name",
    [
        n if n == "groups" else pytest.param(n, marks=pytest.mark.slow)
        for n in dict.fromkeys(case for case, *_ in FLEX_DEFECTS)
    ],
)
def test_the_checker_names_planted_defects(name):
    assert in_interpreter(faults_of_checked_attention, [name], True) == []
