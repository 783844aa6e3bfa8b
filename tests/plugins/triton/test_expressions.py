"""Grids as postfix programs."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyfuse.base.errors import KernelLoadError
from polyfuse_triton.launch.expressions import MAX_STACK, evaluate, postfix

NAMES = ("in0", "ks0", "ks1")


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "text",
    [
        "ks0", "ks0 + ks1 * 3 - 7", "(ks0 + 63) // 64", "-ks0 // 4", "ks0 % 7 + -ks1 % 5",
        "min(ks0, ks1, 4)", "max(1, ks0 // ks1)", "ks0 < ks1 and ks1 >= 3 or ks0 == 9", "ks0 != ks1",
        "ks0 <= 4", "ks0 > ks1",
    ],
)  # fmt: skip
@settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(ks0=st.integers(-50, 50), ks1=st.integers(1, 50))
def test_programs_compute_what_python_does(text, ks0, ks1):
    expected = eval(text, {}, {"ks0": ks0, "ks1": ks1, "min": min, "max": max})
    assert evaluate(postfix(text, NAMES), (0, ks0, ks1)) == int(expected)


def test_numbers_are_programs_too():
    assert evaluate(postfix(17, NAMES), ()) == 17


@pytest.mark.parametrize("text", ["ks9", "abs(ks0)", "ks0 / 2", "ks0.x", "1.5", "ks0 +", "min(ks0, key=1)"])
def test_anything_else_is_refused(text):
    with pytest.raises(KernelLoadError, match="is no expression over in0, ks0, ks1"):
        postfix(text, NAMES)


def test_depth_is_limited():
    deep = "ks0"
    for _ in range(MAX_STACK):
        deep = f"(ks1 - {deep})"
    with pytest.raises(KernelLoadError, match="nested too deeply"):
        postfix(deep, NAMES)
