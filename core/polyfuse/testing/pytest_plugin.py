"""The kit as tests: one line in a backend author's test file turns every case into a test.

::

    from polyfuse.testing import conformance_tests

    test_conformance = conformance_tests("mine")

Cases are built in batches when the first test asks, and each test reports its own cell. Refused cells are
skipped, with the backend's reason.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from polyfuse.plugin import Backend
from polyfuse.testing.conformance import all_cases, run
from polyfuse.testing.contract import contract_checks
from polyfuse.testing.device_checks import DEVICE_CHECKS
from polyfuse.testing.matrix import Cell, Matrix, Status


def conformance_tests(
    backend: str | Callable[[], Backend], quick: bool = False, device: str = "cpu", jobs: int = 1
) -> Callable[..., None]:
    """Return a parametrised test function with one test for each cell of the matrix: every case, the
    contract, and, on a device other than the host, what the device promises.

    `backend` is a name, or a function that makes a backend; nothing of it is touched before tests run. A name
    can be run in several processes (`jobs`).
    """

    @cache
    def matrix() -> Matrix:
        return run(backend if isinstance(backend, str) else backend(), quick, device, jobs)

    @cache
    def by_label() -> dict[str, Cell]:
        found: dict[str, Cell] = {}
        for cell in matrix().cells:
            if found.get(cell.label, cell).status is not Status.FAIL:
                found[cell.label] = cell
        return found

    labels = [part.label for case in all_cases(quick) for part in case.parts]
    labels += [f"contract: {name}" for name, _ in contract_checks()]
    if device.partition(":")[0] != "cpu":
        labels += [f"device: {name}" for name in DEVICE_CHECKS]
    labels = list(dict.fromkeys(labels))

    @pytest.mark.parametrize("label", labels)
    def test_conformance(label: str) -> None:
        if label not in by_label():
            pytest.skip("the backend claims nothing that this could be tried with")
        _report(by_label()[label])

    return test_conformance


def _report(cell: Any) -> None:
    if cell.status is Status.REFUSED:
        pytest.skip(cell.reason)
    if cell.status is Status.FAIL:
        pytest.fail(f"{cell.label}: {cell.reason}", pytrace=False)
