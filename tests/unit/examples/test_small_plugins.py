"""The example plugins that bring one thing, for other plugins' backends."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from house.source_tree import ROOT
from polyfuse.autotune import search as search_module
from polyfuse.autotune.benchmark import Benchmark
from polyfuse.autotune.candidate import Problem, Storage
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin import PluginManager, register, unregister

FOLDER = ROOT / "examples" / "small_plugins"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Any]:
    """Register an example by the name of its file."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    used: list[str] = []

    def use(name: str) -> None:
        used.append(register(importlib.import_module(name)))
        forget_sessions()
        reset_reports()
        torch.compiler.reset()

    yield use
    for name in used:
        unregister(name)
    forget_sessions()


def test_each_is_short():
    for path in FOLDER.glob("*.py"):
        assert 10 <= len(path.read_text().splitlines()) <= 40, path


def many_sums(*xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(xs[0] + x for x in xs[1:])


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("off", "rules"), [((), 1), (("few-buffers",), 0), (("few-buffers.few-buffers",), 0)]
)
def test_a_rule_alone(use, off, rules):
    use("few_buffers")
    xs = [torch.randn(16) for _ in range(9)]
    options = {"backends": ["interpreter"], "strict": True, "disable_fusion_rules": off}
    found = torch.compile(many_sums, backend="polyfuse", options=options)(*xs)
    torch.testing.assert_close(found, many_sums(*xs))
    (report,) = last_reports()
    named = [d.reason for d in report.decisions if "few-buffers.few-buffers" in d.reason]
    assert bool(named) == bool(rules) and (len(report.launches) > 1) == bool(rules)
    assert all("more than 8 (rule few-buffers.few-buffers)" in reason for reason in named)


def test_a_choice_alone(use, monkeypatch):
    def fake(runner: Any, problem: Any, candidates: Any, *_: Any) -> dict[str, float]:
        return {c.name: 0.5 if "plain-mm:plain" in c.name else 9.0 for c in candidates}

    monkeypatch.setattr(search_module, "run_trials", fake)
    use("plain_mm")
    a, b = torch.randn(7, 5), torch.randn(5, 9)
    options = {"backends": ["interpreter"], "gemm": "fastest", "strict": True, "tune_in_process": True}
    torch.testing.assert_close(torch.compile(torch.mm, backend="polyfuse", options=options)(a, b), a @ b)
    assert last_reports()[-1].calls == ("aten.mm.default",)


def test_a_timer_alone(use):
    def sets() -> int:
        manager = PluginManager(Settings())
        bench = Benchmark(manager.backend, manager.timer)
        bench.prepare(Problem("", "cpu", "cpp", (Storage("float32", "cpu", 1 << 20, cold=True),)))
        return len(bench._sets)

    assert sets() > 1
    use("warm_timer")
    assert sets() == 1


def test_what_they_offer_is_shown(use):
    for name in ("few_buffers", "plain_mm", "warm_timer"):
        use(name)
    states = {state.name: state for state in PluginManager(Settings()).states()}
    assert [offer.value for offer in states["few-buffers"].manifest.offers] == ["fusion rules"]
    assert [offer.value for offer in states["plain-mm"].manifest.offers] == ["choices"]
