"""Races whose times a test decides: contenders run and are compared with the first, but nobody is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.select import heat
from polyfuse.select.work import Candidate

Run = Callable[..., GraphReport]


def decided(monkeypatch: pytest.MonkeyPatch, folder: Path, times: Mapping[str, float]) -> Run:
    """What compiles and runs a function where these contenders, or these configurations of them, take these
    milliseconds, and others nine.

    The result is compared with eager mode's; with `change`, a parameter, once more after that has changed.
    """

    def race(track: Any, problem: Any, candidates: Sequence[Candidate], *_: Any) -> Mapping[str, float]:
        track.prepare(problem)
        for c in candidates:
            track.first(c)
            assert track.check(c, candidates[0]) <= 1
        return {c.name: times.get(c.name, times.get(c.name.partition(" ")[0], 9.0)) for c in candidates}

    def run(
        function: Callable[..., Any], *args: Any, freezing: bool = False, change: Any = None, **options: Any
    ) -> GraphReport:
        monkeypatch.setattr(heat, "race", race)
        forget_sessions()
        reset_reports()
        torch.compiler.reset()
        settings = {
            "gemm": "fastest",
            "tune_in_process": True,
            "strict": True,
            "cache_dir": str(folder),
            "freezing": freezing,
        }
        with torch.no_grad():
            call = torch.compile(function, backend="polyfuse", options=settings, **options)
            torch.testing.assert_close(call(*args), function(*args))
            if change is not None:
                change.mul_(-1.5)
                torch.testing.assert_close(call(*args), function(*args))
        return last_reports()[-1]

    return run


def reasons(report: GraphReport) -> dict[str, str]:
    """Why each contender was chosen or took no part, by its name."""
    return {d.second: d.reason for d in report.decisions if d.kind in ("choice", "declined")}
