"""Steps, offsets, divisibility and width of index expressions."""

from __future__ import annotations

import pytest

from polyfuse.kit import affine, fits_i32_throughout, is_multiple, row_major, stride
from polyfuse.symbolic import axis, symbol

I, J, N = axis("i", 8), axis("j", 16), symbol("n", 2, 1000)


def test_strides():
    assert stride(3 * I + J, "i") == 3 and stride(3 * I + J, "k") == 0 and stride(7, "i") == 0
    assert stride(I * N, "i") == N
    assert stride(I * J, "i") is None, "the step differs along j"
    assert stride(I // 2, "i") is None


def test_affine():
    found = affine(I * N + 2 * J + N + 5, (I, J))
    assert found is not None and found.offset == N + 5 and found.strides == (N, 2)
    assert affine(I + J, (I,)) is None and affine(I * I, (I,)) is None and affine(J % 4, (J,)) is None
    constant = affine(4, (I, J))
    assert constant is not None and constant.offset == 4 and constant.strides == (0, 0)


def test_row_major():
    assert row_major((I, J)) == 16 * I + J and row_major(()) == 0


@pytest.mark.parametrize(
    ("index", "number", "expected"),
    [(12, 4, True), (4 * I + 8, 4, True), (4 * I + 2, 4, False), (I, 2, False)],
)
def test_multiples(index, number, expected):
    assert is_multiple(index, number) is expected


def test_width():
    wide = symbol("m", 0, 1 << 40)
    assert fits_i32_throughout(1000 * N + I) and not fits_i32_throughout(wide)
    assert not fits_i32_throughout(wide % 8), "the operand is computed too"
    assert not fits_i32_throughout((1 << 31) * I - (1 << 31) * J + 1)
    assert fits_i32_throughout((1 << 31) - 1) and not fits_i32_throughout(1 << 31)
