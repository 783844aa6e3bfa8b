"""Outputs that lie over inputs, on the device: the kit's cases in all their configurations."""

from __future__ import annotations

import pytest

from polyfuse.base.errors import BackendUnavailableError, PolyfuseError
from polyfuse.base.settings import Settings
from polyfuse.plugin import PluginManager
from polyfuse.testing.cases.alias import alias_cases
from polyfuse.testing.conformance import Run

pytestmark = pytest.mark.gpu


PARTS = 3
"""Tests that share the cases: a backend builds each in all its configurations, which takes minutes."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", ["triton", "cutlass", "halide"])
def test_the_kit(name, part):
    try:
        backend = PluginManager(Settings.resolve()).backend(name)
    except (BackendUnavailableError, PolyfuseError) as error:
        pytest.skip(f"the backend {name} cannot be used here: {error}")
    cases = tuple(alias_cases(quick=True))[part::PARTS]
    assert cases
    matrix = Run(backend, "cuda").matrix(cases, contract=False)
    assert matrix.ok, "\n".join(f"{cell.label}: {cell.reason}" for cell in matrix.failures())


@pytest.mark.slow
def test_every_configuration():
    try:
        backend = PluginManager(Settings.resolve()).backend("triton")
    except PolyfuseError as error:
        pytest.skip(f"the backend triton cannot be used here: {error}")
    matrix = Run(backend, "cuda", quick=False).matrix(tuple(alias_cases(quick=False)), contract=False)
    assert matrix.ok, "\n".join(f"{cell.label}: {cell.reason}" for cell in matrix.failures())
