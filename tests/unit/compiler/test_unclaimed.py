"""What no backend generates code for runs as eager operators; the rest of the graph is compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polyfuse.backend import polyfuse
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin import Claim, No
from polyfuse.reference.backend import InterpreterBackend


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter, without sines."""
    claims = InterpreterBackend.claims

    def without_sines(self: InterpreterBackend, node: Any) -> Claim:
        return No("it has no sine") if "sin." in str(node) else claims(self, node)

    monkeypatch.setattr(InterpreterBackend, "claims", without_sines)
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    yield
    forget_sessions()


def _compile(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=polyfuse, options={"backends": ["interpreter"], **options})


def test_only_the_refused_operators_run_in_eager_mode(picky: None) -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.exp(x).sum(-1), torch.sin(y + 1) * 2 + y.sin()

    x, y = torch.randn(3, 4), torch.randn(5)
    for actual, expected in zip(_compile(model)(x, y), model(x, y), strict=True):
        torch.testing.assert_close(actual, expected)
    (report,) = last_reports()
    assert not report.eager and report.kernels
    reasons = dict(report.fallbacks)
    assert "aten.exp.default" not in reasons
    assert "it has no sine" in reasons["aten.sin.default"]


def test_what_reads_an_eager_result_is_claimed_too(monkeypatch: pytest.MonkeyPatch, picky: None) -> None:
    """Fused with the sine, the cosine had no loop of its own, and that one is refused as well."""
    claims = InterpreterBackend.claims

    def no_reads_of_cosines(self: InterpreterBackend, node: Any) -> Claim:
        lone = "cos." in str(node) and "sin." not in str(node)
        return No("it has no cosine") if lone else claims(self, node)

    monkeypatch.setattr(InterpreterBackend, "claims", no_reads_of_cosines)

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x).sum(-1) + torch.sin(torch.cos(x)).sum()

    x = torch.randn(3, 4)
    torch.testing.assert_close(_compile(model)(x), model(x))
    (report,) = last_reports()
    assert not report.eager and report.kernels
    assert {"aten.sin.default", "aten.cos.default"} <= {op for op, _ in report.fallbacks}


def test_a_graph_is_scheduled_once(monkeypatch: pytest.MonkeyPatch, picky: None) -> None:
    from polyfuse.compiler import stages

    graphs: list[Any] = []
    schedule_graph = stages.schedule_graph

    def counted(graph: Any, *args: Any, **named: Any) -> Any:
        graphs.append(graph)
        return schedule_graph(graph, *args, **named)

    monkeypatch.setattr(stages, "schedule_graph", counted)
    _compile(lambda x: x.sin() + x.exp(), graph_cache=False)(torch.randn(5))
    assert len(graphs) == 1


def test_with_strict_it_is_an_error(picky: None) -> None:
    with pytest.raises(Exception, match="it has no sine"):
        _compile(lambda x: x.sin(), strict=True)(torch.randn(3))


def test_where_nobody_serves_a_device_the_graph_runs_in_eager_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfuse.compiler.session import CompileSession

    monkeypatch.setattr(CompileSession, "backends", lambda self, device_type: iter(()))
    reset_reports()
    torch.compiler.reset()
    x = torch.randn(4)
    torch.testing.assert_close(_compile(lambda x: x.cos() + 1)(x), x.cos() + 1)
    assert "names none that serves cpu" in last_reports()[-1].eager
