"""Compile functions so that their work is recorded, and look at what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.runtime.graphs.status import GraphStatus

OPTIONS: dict[str, Any] = {"device_graphs": True, "backends": ["interpreter"], "strict": True}


def compiled(fn: Callable[..., Any], *, dynamic: bool | None = False, **options: Any) -> Callable[..., Any]:
    """`fn` with its work recorded; earlier reports are forgotten."""
    reset_reports()
    made: Callable[..., Any] = torch.compile(
        fn, backend="polyfuse", dynamic=dynamic, options={**OPTIONS, **options}
    )
    return made


def report(kind: str = "") -> GraphReport:
    """Of the last graph (of a kind) compiled."""
    return [r for r in last_reports() if kind in ("", r.kind)][-1]


def status(kind: str = "") -> GraphStatus:
    """What became of recording the last graph (of a kind) compiled."""
    found = report(kind).recording
    assert found is not None
    return found
