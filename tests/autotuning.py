"""Trials whose times a test decides: candidates run and are compared with the first; nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfuse.autotune import search as search_module
from polyfuse.autotune.candidate import BuiltProgram
from polyfuse.base.config import Config
from polyfuse.cache.timings import Candidate, Record, Trial
from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions

Run = Callable[..., GraphReport]


def candidate(name: str) -> Candidate:
    """The candidate that prints as `name`."""
    implementation, _, config = name.partition(" ")
    return Candidate(implementation, Config.parse(config) if config else None)


def record(times: Mapping[str, float], about: str = "", complete: bool = True, baseline: str = "") -> Record:
    """A record of these milliseconds."""
    return Record(about, tuple(Trial(candidate(n), ms) for n, ms in times.items()), baseline, complete)


def times_of(record: Record) -> dict[str, float]:
    """Milliseconds by the name of the candidate."""
    return {str(trial.candidate): trial.milliseconds for trial in record.trials}


def best_of(record: Record) -> str | None:
    """The name of the best candidate."""
    return None if record.best is None else str(record.best.candidate)


def with_times(monkeypatch: pytest.MonkeyPatch, folder: Path, times: Mapping[str, float]) -> Run:
    """What compiles and runs a function where these implementations, or these configurations of them, take
    these milliseconds, and others nine.

    The result is compared with eager mode's; with `change`, a parameter, once more after that has changed.
    """

    def trials(runner: Any, problem: Any, candidates: Sequence[BuiltProgram], *_: Any) -> Mapping[str, float]:
        runner.prepare(problem)
        for c in candidates:
            runner.first(c)
            assert runner.check(c, candidates[0]) <= 1
        return {c.name: times.get(c.name, times.get(c.name.partition(" ")[0], 9.0)) for c in candidates}

    def run(
        function: Callable[..., Any], *args: Any, freezing: bool = False, change: Any = None, **options: Any
    ) -> GraphReport:
        monkeypatch.setattr(search_module, "run_trials", trials)
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


def try_one_configuration(monkeypatch: pytest.MonkeyPatch, backend: type[Any]) -> None:
    """Let a search build the first configuration of a kernel alone: where a test decides which implementation
    wins, the others of a generated one are compiled for nothing, which takes most of its time."""
    first = backend.configs
    monkeypatch.setattr(backend, "configs", lambda self, kernel: list(first(self, kernel))[:1])
    monkeypatch.setattr(backend, "neighbours", lambda self, kernel, config: [])


def reasons(report: GraphReport) -> dict[str, str]:
    """Why each implementation was chosen or took no part, by its name."""
    return {d.second: d.reason for d in report.decisions if d.kind in ("choice", "declined")}
