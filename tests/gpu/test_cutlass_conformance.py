"""The CUTLASS backend through the kit's matrix multiplications, on the device."""

from __future__ import annotations

import pytest

from polyfuse.base.errors import BackendUnavailableError
from polyfuse.base.settings import Settings
from polyfuse.testing.cases.matmul import matmul_cases
from polyfuse.testing.conformance import Run
from polyfuse.testing.matrix import Status
from polyfuse_cutlass.backend import CutlassBackend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
]


def test_matmuls():
    try:
        backend = CutlassBackend(Settings.resolve())
    except BackendUnavailableError as error:
        pytest.skip(f"the CUTLASS backend, whose products are tested, cannot be used here: {error.cause}")
    matrix = Run(backend, "cuda").matrix(tuple(matmul_cases(quick=True)), contract=False)
    assert matrix.ok, "\n".join(f"{cell.label}: {cell.reason}" for cell in matrix.failures())
    assert sum(cell.status is Status.PASS for cell in matrix.cells) >= 10
