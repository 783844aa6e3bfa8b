"""The Halide backend through the kit."""

from __future__ import annotations

import pytest

from polyfuse.base.settings import Settings
from polyfuse.plugin import PluginManager
from polyfuse.testing.conformance import Run, all_cases, run
from polyfuse.testing.matrix import Matrix
from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)


def check(matrix: Matrix) -> None:
    assert matrix.ok, "\n".join(f"{cell.label}: {cell.reason}" for cell in matrix.failures())


def test_every_twentieth_kernel_of_the_kit() -> None:
    """Halide compiles each by itself, and takes as long for all as for many other tests."""
    backend = PluginManager(Settings.resolve()).backend("halide")
    check(Run(backend).matrix(tuple(all_cases(quick=True))[::20]))


@pytest.mark.slow
def test_the_whole_kit() -> None:
    check(run("halide"))
