"""The interpreter through the kit: by itself it shows that the kit and the plugin door work."""

from __future__ import annotations

import pytest

from polyfuse.testing.conformance import run
from polyfuse.testing.pytest_plugin import conformance_tests

test_conformance = conformance_tests("interpreter", quick=True)


@pytest.mark.slow
def test_the_whole_kit():
    matrix = run("interpreter")
    assert matrix.ok, "\n".join(f"{cell.label}: {cell.reason}" for cell in matrix.failures())
