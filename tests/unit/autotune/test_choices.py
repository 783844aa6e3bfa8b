"""What plugins offer for calls, by the hook `polyfuse_choices`: it is timed, and used where it wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import choice_plugin
from fake_plugins import install, plugin
from polyfuse.autotune import search as search_module
from polyfuse.autotune.candidate import BuiltProgram
from polyfuse.compiler.reports.explain import explain
from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin import Choice, Yes

A, B, C = torch.randn(7, 5), torch.randn(5, 9), torch.randn(9)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Compile and run a function where these implementations have these times, all others being slower."""
    hooks = {"polyfuse_choices": choice_plugin.polyfuse_choices}
    point = plugin(
        monkeypatch, hooks=hooks, load="choice_plugin:ChoiceBackend", priority={"cpu": 1000}, options={}
    )
    install(monkeypatch, point)

    def compiled(function: Any, args: Sequence[Any], times: Mapping[str, float]) -> GraphReport:
        def fake(runner: Any, problem: Any, candidates: Sequence[BuiltProgram], *_: Any) -> dict[str, float]:
            runner.prepare(problem)
            for c in candidates:
                runner.first(c)
                assert runner.check(c, candidates[0]) <= 1
            return {c.name: times.get(c.name, 9.0) for c in candidates}

        monkeypatch.setattr(search_module, "run_trials", fake)
        forget_sessions()
        reset_reports()
        torch.compiler.reset()
        options = {
            "backends": ["toy"],
            "gemm": "fastest",
            "strict": True,
            "tune_in_process": True,
            "cache_dir": str(tmp_path),
        }
        result = torch.compile(function, backend="polyfuse", options=options)(*args)
        torch.testing.assert_close(result, function(*args))
        return last_reports()[-1]

    yield compiled
    forget_sessions()


def test_source_may_be_for_another_plugins_backend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, run: Any
) -> None:
    """The plugin that offers it has no backend at all."""
    given = next(choice for choice in choice_plugin.CHOICES if choice.name == "word")
    offered = (replace(given, name="guest", backend="toy"), replace(given, name="lost", backend="nobody"))
    install(
        monkeypatch,
        plugin(monkeypatch, load="choice_plugin:ChoiceBackend", priority={"cpu": 1000}, options={}),
        plugin(
            monkeypatch,
            "guests",
            {"polyfuse_choices": lambda device_type: offered},
            load="",
            priority={},
            options={},
            distribution="polyfuse-guests",
        ),
    )
    report = run(lambda a, b: a @ b, (A, B), {"guests:guest times=1": 0.5})
    found = chosen(report)
    assert "guests:guest times=1" in found
    assert "nobody" in found["guests:lost"]


def chosen(report: GraphReport) -> dict[str, str]:
    return {d.second: d.reason for d in report.decisions if d.kind in ("choice", "declined")}


def test_another_operator(run):
    report = run(torch.mm, (A, B), {"library": 1.0, "toy:plain": 0.5})
    assert report.calls == ("aten.mm.default",)
    assert "toy:plain 0.5" in chosen(report)["toy:plain"]


def test_several_calls_with_a_buffer_between(run):
    report = run(lambda a, b: a @ b + 1, (A, B), {"library": 1.0, "toy:scratch": 0.5})
    assert report.calls == ("aten.mm.out", "aten.clone.default")


def test_the_library_may_win(run):
    report = run(torch.mm, (A, B), {"library": 1.0, "toy:plain": 0.99})
    assert report.calls == ("aten.mm.out",) and "library" in chosen(report)


def test_refusals_are_decisions(run):
    found = chosen(run(torch.mm, (A, B), {"library": 1.0}))
    assert found["toy:never"] == "not today"
    assert "what is this?" in found["toy:broken"]


def test_what_follows_is_taken_too(run):
    addmm_relu = lambda a, b, c: torch.relu(torch.addmm(c, a, b))  # noqa: E731
    report = run(addmm_relu, (A, B, C), {"library": 1.0, "toy:relu": 0.5})
    assert report.calls == ("aten._addmm_activation.default",) and report.kernels == 0


def test_what_is_not_alone_is_left(run):
    def both(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        d = torch.addmm(c, a, b)
        return torch.relu(d), d

    assert chosen(run(both, (A, B, C), {}))["toy:relu"] == "no relu follows"


def test_source_of_the_plugins_backend_in_its_best_configuration(run):
    times = {"library": 1.0, "toy:word times=2": 0.7, "toy:word times=1": 0.5}
    report = run(lambda a, b: (a @ b).relu(), (A, B), times)
    assert report.calls[0].endswith("_word")
    assert "toy:word times=1" in chosen(report)
    # and again, from what is remembered
    again = run(lambda a, b: (a @ b).relu(), (A, B), {})
    assert again.calls == report.calls


def test_a_choice_has_one_of_both():
    with pytest.raises(ValueError, match="either"):
        Choice("both", ("aten.mm.out",), lambda site: Yes())
    with pytest.raises(ValueError, match="one word"):
        Choice("two words", ("aten.mm.out",), lambda site: Yes(), instead=choice_plugin.plain)


def test_explain_says_what_was_chosen_and_why_not(run):
    report = run(torch.mm, (A, B), {"library": 1.0, "toy:plain": 0.5})
    said = explain([report])
    assert "chosen by timing" in said and "toy:plain for mm of float32[7x5] float32[5x9]" in said
    assert "not timed" in said and "toy:never: not today" in said
