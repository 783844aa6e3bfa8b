"""Kernels that are a small part of a graph stay as they are: they are measured once, and not searched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from autotuning import candidate, record
from polyfuse.autotune import search as search_module
from polyfuse.autotune.candidate import BuiltProgram
from polyfuse.autotune.tuner import negligible
from polyfuse.cache.timings import FAILED
from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Config, Source
from polyfuse.reference.backend import InterpreterBackend

LARGE, SMALL = torch.randn(300, 100), torch.randn(9)
NAMES = ["interpreter n=0", "interpreter n=1", "interpreter n=2"]

Timed = list[tuple[str, list[str]]]
Run = Callable[..., tuple[GraphReport, Timed]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """Compile a function whose kernels have three configurations and take as long as they have elements; what
    was timed: the problem's name and the implementations.
    """
    timed: Timed = []
    plain = InterpreterBackend.emit

    def emit(self: InterpreterBackend, kernel: Kernel, config: Config | None = None) -> Source:
        found = plain(self, kernel)
        return Source(found.name, found.text, found.language, meta=str(config))

    def fake(runner: Any, problem: Any, candidates: Sequence[BuiltProgram], *_: Any) -> Mapping[str, float]:
        timed.append((problem.about, [c.name for c in candidates]))
        return {c.name: 1e-3 * problem.storages[0].count for c in candidates}

    def compiled(function: Callable[..., Any], *args: torch.Tensor, **more: object) -> Any:
        timed.clear()
        forget_sessions()
        reset_reports()
        torch.compiler.reset()
        options = {
            "backends": ["interpreter"],
            "tune_kernels": True,
            "tune_in_process": True,
            "strict": True,
            "cache_dir": str(tmp_path),
            **more,
        }
        result = torch.compile(function, backend="polyfuse", options=options, dynamic=False)(*args)
        torch.testing.assert_close(result, function(*args))
        return last_reports()[-1], list(timed)

    monkeypatch.setattr(InterpreterBackend, "emit", emit)
    monkeypatch.setattr(InterpreterBackend, "configs", lambda *_: [Config.of(n=n) for n in range(3)])
    monkeypatch.setattr(search_module, "run_trials", fake)
    yield compiled
    forget_sessions()


def both(large: torch.Tensor, small: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return large.sin() + 1, small.exp() * 2


def tuned(report: GraphReport) -> list[str]:
    return [d.reason for d in report.decisions if d.kind == "tune"]


def test_what_is_small_is_measured_once_and_never_again(run):
    report, timed = run(both, LARGE, SMALL)
    default, searched = timed[:2], timed[2:]
    assert [names for _, names in default] == [NAMES[:1], NAMES[:1]]
    ((about, names),) = searched
    # the default one runs again, beside the others
    assert "[30000]" in about and names == NAMES
    assert sum("too small a part" in reason for reason in tuned(report)) == 1
    again, timed = run(both, LARGE, SMALL)
    assert timed == [] and tuned(again) == tuned(report)


def test_in_another_graph_it_may_matter(run):
    run(both, LARGE, SMALL)
    report, timed = run(lambda small: small.exp() * 2, SMALL)
    ((about, names),) = timed
    assert "[9]" in about and names == NAMES
    assert not any("too small a part" in reason for reason in tuned(report))


def test_the_only_kernel_is_searched_at_once(run):
    _, timed = run(lambda large: large.sin() + 1, LARGE)
    ((_, names),) = timed
    assert names == NAMES


@pytest.mark.quick(1)
@pytest.mark.parametrize(("times", "searched"), [(20, 1), (40, 2)])
def test_repeats_count(run, times, searched):
    def often(large: torch.Tensor, small: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(times):
            small = torch.linalg.inv(small) * 1.01
        return large.sin() + 1, small

    _, timed = run(often, LARGE, torch.eye(3))
    assert len([names for _, names in timed if names == NAMES]) == searched


def test_beside_gemms_that_take_long(run, monkeypatch):
    monkeypatch.setattr(InterpreterBackend, "autotunes_gemm", True)

    def function(large: torch.Tensor, small: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return large @ large.t(), small.exp() * 2

    options = {"gemm": "fastest"}
    for _ in range(2):  # from what was measured, and from what is remembered of the graph
        report, timed = run(function, LARGE, SMALL, **options)
        assert not any(names == NAMES for _, names in timed)
        assert any("too small a part" in reason for reason in tuned(report))


class Question:
    """A kernel, as far as its share of a graph is concerned."""

    def __init__(self, key: str, uses: int = 1) -> None:
        self.key, self.uses, self.problem = key, uses, self
        self.about, self.default = f"kernel {key}", candidate("own")


def test_shares_of_the_whole():
    questions: list[Any] = [Question("ab1"), Question("ab2"), Question("ab3", 2), Question("ab4")]
    times = {"ab1": {"own": 100.0}, "ab2": {"own": 0.9}, "ab3": {"own": 0.9}, "ab4": {"own": FAILED}}
    records = {key: record(trials, complete=False) for key, trials in times.items()}
    found = negligible(questions, records, 0.0)
    assert set(found) == {"ab2"}
    assert found["ab2"] == record({"own": 0.9}, "kernel ab2")
    assert set(negligible(questions, records, 1000.0)) == {"ab2", "ab3"}
    records["ab1"] = record({"best": 1.0, "bad": FAILED})
    assert set(negligible(questions, records, 0.0)) == set()
