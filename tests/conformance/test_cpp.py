"""The C++ backend through the kit."""

from __future__ import annotations

import pytest

from polyfuse.base.settings import Settings
from polyfuse.plugin import PluginManager
from polyfuse.testing.conformance import Run, all_cases, run
from polyfuse.testing.matrix import Matrix


def check(matrix: Matrix) -> None:
    assert matrix.ok, "\n".join(f"{cell.label}: {cell.reason}" for cell in matrix.failures())


def test_every_tenth_kernel_of_the_quick_kit() -> None:
    """Those between them differ in operator or type, and the tests of the backend have these too."""
    backend = PluginManager(Settings.resolve()).backend("cpp")
    check(Run(backend, quick=True).matrix(tuple(all_cases(quick=True))[::10]))


@pytest.mark.slow
def test_the_whole_kit() -> None:
    check(run("cpp"))
