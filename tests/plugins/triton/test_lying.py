"""Defects planted in Triton kernels are found by the kit."""

from __future__ import annotations

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.testing.lying import DEFECTS
from triton_interpreted import in_interpreter
from triton_lying import not_found

QUICK = ("stale-row", "random-repeated", "alias-ignored", "lost-update", "store-outside")


def test_some_of_each_kind() -> None:
    assert in_interpreter(not_found, QUICK) == []


@pytest.mark.slow
def test_all() -> None:
    assert in_interpreter(not_found, [row.name for row in DEFECTS]) == []
