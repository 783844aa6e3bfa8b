"""Whether the conformance kit finds a planted defect."""

from __future__ import annotations

from collections.abc import Iterable

from polyfuse.plugin import Backend
from polyfuse.testing.cases.case import Case
from polyfuse.testing.conformance import Run, all_cases
from polyfuse.testing.lying.backend import Lying
from polyfuse.testing.lying.planting import Defect
from polyfuse.testing.matrix import Cell, Status

_TOGETHER = 8
"""Cases built and run together."""


def caught_by_kit(
    backend: Backend, defect: Defect, device: str = "cpu", cases: Iterable[Case] | None = None
) -> Cell | None:
    """The first cell of the matrix that fails with a defect, or None where the kit does not find it. Only
    cases that have something for the defect are run."""
    run = Run(Lying(backend, defect), device)
    chosen: list[Case] = []
    for case in all_cases(quick=True) if cases is None else cases:
        if not defect.applies(case.kernel) or (defect.launches > 1 and len(case.runs) < 2):
            continue
        chosen.append(case)
        if len(chosen) == _TOGETHER:
            found = _failed(run, chosen)
            if found is not None:
                return found
            chosen = []
    return _failed(run, chosen) if chosen else None


def _failed(run: Run, cases: list[Case]) -> Cell | None:
    cells = run.matrix(cases, contract=False).cells
    return next((cell for cell in cells if cell.status is Status.FAIL), None)
