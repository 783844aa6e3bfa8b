"""Grids as postfix programs."""

from __future__ import annotations

from itertools import product

import pytest

from polyfuse.base.errors import KernelLoadError
from polyfuse_triton.launch.expressions import MAX_STACK, evaluate, postfix

NAMES = ("in0", "ks0", "ks1")


@pytest.mark.parametrize(
    "text",
    [
        "ks0", "ks0 + ks1 * 3 - 7", "(ks0 + 63) // 64", "-ks0 // 4", "ks0 % 7 + -ks1 % 5",
        "min(ks0, ks1, 4)", "max(1, ks0 // ks1)", "ks0 < ks1 and ks1 >= 3 or ks0 == 9", "ks0 != ks1",
        "ks0 <= 4", "ks0 > ks1",
    ],
)  # fmt: skip
def test_programs_compute_what_python_does(text):
    program, code = postfix(text, NAMES), compile(text, "grid", "eval")
    for ks0, ks1 in product(range(-50, 51), (1, 2, 3, 4, 5, 7, 8, 49, 50)):
        expected = eval(code, {"ks0": ks0, "ks1": ks1, "min": min, "max": max})
        assert evaluate(program, (0, ks0, ks1)) == int(expected), (ks0, ks1)


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
