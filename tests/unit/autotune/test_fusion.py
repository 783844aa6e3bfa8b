"""Fusion decided by timing: halves that are faster apart stay apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from polyfuse.autotune import kernels
from polyfuse.autotune import search as search_module
from polyfuse.autotune.candidate import BuiltProgram
from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions

X = torch.randn(7, 9)


def softmax_and_more(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1).relu() * 2


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Compile and run with these times, and count the tried."""
    tried: list[str] = []

    def compiled(fused: float, apart: float, function: Any = softmax_and_more, **more: object) -> GraphReport:
        def fake(
            runner: Any, problem: Any, candidates: Sequence[BuiltProgram], *_: Any
        ) -> Mapping[str, float]:
            tried.append(problem.about)
            runner.prepare(problem)
            for c in candidates:
                runner.first(c)
                assert runner.check(c, candidates[0]) <= 1
            return {c.name: {"fused": fused, "apart": apart}[c.name] for c in candidates}

        monkeypatch.setattr(search_module, "run_trials", fake)
        forget_sessions()
        reset_reports()
        torch.compiler.reset()
        options = {
            "backends": ["interpreter"],
            "strict": True,
            "tune_in_process": True,
            "benchmark_fusion": True,
            "cache_dir": str(tmp_path),
            **more,
        }
        result = torch.compile(function, backend="polyfuse", options=options)(X)
        torch.testing.assert_close(result, function(X))
        return last_reports()[-1]

    compiled.tried = tried  # type: ignore[attr-defined]
    yield compiled
    forget_sessions()


def test_what_is_faster_fused_stays_fused(run):
    assert run(fused=1.9, apart=2.0).kernels == 1
    # each of its merges was timed apart
    assert len(run.tried) == 2


def test_an_earlier_merge_may_be_the_one_that_is_slow(run, monkeypatch):
    seen: list[Any] = []
    decided = kernels.FusionTask.decision

    def later(task: kernels.FusionTask, record: Any) -> Any:
        seen.append(task)
        found = decided(task, record)
        return found if len(seen) != 2 else replace(found, candidate=kernels.Candidate(kernels.APART))

    monkeypatch.setattr(kernels.FusionTask, "decision", later)
    assert run(fused=1.0, apart=2.0).kernels > 1


def test_every_merge_is_timed(run):
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = x.softmax(-1).cumsum(0)
        return x.sin()

    report = run(fused=1.0, apart=2.0, function=chain)
    merges = sum(d.kind == "fuse" for d in report.decisions)
    assert merges > 8
    assert len({d.first for d in report.decisions if d.kind == "tune"}) == merges


def test_a_draw_leaves_it_fused(run):
    assert run(fused=2.0, apart=1.99).kernels == 1


def test_what_is_faster_apart_is_apart(run):
    report = run(fused=2.0, apart=1.0)
    assert report.kernels > 1
    assert any("faster unfused" in d.reason for d in report.decisions if d.kind == "refuse")
    assert next(d.second for d in report.decisions if d.kind == "tune") == "apart"


def test_a_fused_kernel_that_fails_is_divided(run):
    assert run(fused=float("inf"), apart=1.0).kernels > 1


def test_halves_that_fail_stay_fused(run):
    assert run(fused=1.0, apart=float("inf")).kernels == 1


def test_it_is_remembered(run):
    first = run(fused=2.0, apart=1.0)
    count = len(run.tried)
    assert run(fused=0.1, apart=9.0).kernels == first.kernels
    assert len(run.tried) == count


def test_not_without_the_option(run):
    assert run(fused=2.0, apart=1.0, benchmark_fusion=False).kernels == 1 and not run.tried


def test_what_adds_atomically_is_left_alone(run):
    def scattered(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(7, 9).index_add(0, torch.tensor([1, 1, 2, 0, 3, 3, 3]), x * 2)

    run(fused=2.0, apart=1.0, function=scattered)
    assert not run.tried


def test_where_timing_fails_fusions_stay(run, monkeypatch, caplog):
    monkeypatch.setattr(kernels, "FusionTask", None)
    assert run(fused=2.0, apart=1.0, strict=False).kernels == 1
    assert "fusions are not timed" in caplog.text
