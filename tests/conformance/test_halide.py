"""The Halide backend through the kit."""

from __future__ import annotations

import pytest

from polyfuse.testing.conformance import run
from polyfuse.testing.pytest_plugin import conformance_tests
from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

test_conformance = conformance_tests("halide", quick=True)


@pytest.mark.slow
def test_the_whole_kit():
    matrix = run("halide")
    assert matrix.ok, "\n".join(f"{cell.label}: {cell.reason}" for cell in matrix.failures())
