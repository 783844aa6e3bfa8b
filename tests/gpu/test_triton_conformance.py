"""The Triton backend through the conformance kit, on the device."""

from __future__ import annotations

import os

import pytest

from polyfuse.testing.conformance import run
from polyfuse.testing.pytest_plugin import conformance_tests

pytestmark = pytest.mark.gpu

SECONDS = 600
"""The first test builds and runs all cases."""

JOBS = max(1, min(12, (os.cpu_count() or 1) - 2))

test_conformance = conformance_tests("triton", quick=True, device="cuda", jobs=JOBS)


@pytest.mark.slow
def test_the_whole_kit() -> None:
    matrix = run("triton", device="cuda", jobs=JOBS)
    assert matrix.ok, "\n".join(f"{cell.label}: {cell.reason}" for cell in matrix.failures())
