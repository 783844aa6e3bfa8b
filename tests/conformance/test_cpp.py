"""The C++ backend through the kit."""

from __future__ import annotations

import pytest

from polyfuse.testing.conformance import run
from polyfuse.testing.pytest_plugin import conformance_tests

test_conformance = conformance_tests("cpp", quick=True)


@pytest.mark.slow
def test_the_whole_kit():
    matrix = run("cpp")
    assert matrix.ok, "\n".join(f"{cell.label}: {cell.reason}" for cell in matrix.failures())
