"""Products that compute their operands, where that is another way to do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from polyfuse.autotune import search as search_module
from polyfuse.autotune.candidate import BuiltProgram
from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Node, Reduction
from polyfuse.plugin import Claim, Config, No, Source, Yes
from polyfuse.reference.backend import InterpreterBackend

R = torch.randn
A, B = R(7, 5), R(5, 9)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Compile and run a function in which products that compute their operands win, where there are any."""
    monkeypatch.setattr(InterpreterBackend, "autotunes_gemm", True)

    def compiled(
        function: Callable[..., Any], *args: torch.Tensor, dynamic: bool = False, prologue: float = 1.0
    ) -> tuple[GraphReport, list[str]]:
        names: list[str] = []

        def fake(
            runner: Any, problem: Any, candidates: Sequence[BuiltProgram], *_: Any
        ) -> Mapping[str, float]:
            runner.prepare(problem)
            for c in candidates:
                names.append(c.name)
                runner.first(c)
                assert runner.check(c, candidates[0]) <= 1
            order = {"library": 2.0, "interpreter": 3.0, "interpreter+prologue": prologue}
            return {c.name: order[c.name.partition(" ")[0]] for c in candidates}

        monkeypatch.setattr(search_module, "run_trials", fake)
        forget_sessions()
        reset_reports()
        torch.compiler.reset()
        options = {
            "backends": ["interpreter"],
            "gemm": "fastest",
            "strict": True,
            "tune_in_process": True,
            "cache_dir": str(tmp_path),
        }
        result = torch.compile(function, backend="polyfuse", options=options, dynamic=dynamic)(*args)
        half = any(a.dtype is torch.bfloat16 for a in args) or result.dtype is torch.bfloat16
        limit = 3e-2 if half else 1e-4
        torch.testing.assert_close(result, function(*args), rtol=limit, atol=limit)
        return last_reports()[-1], names

    yield compiled
    forget_sessions()


TAKEN: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "converted": (lambda a, w: a @ w.float(), (A, B.bfloat16())),
    "both converted": (lambda a, w: a.bfloat16() @ w.bfloat16(), (A, B)),
    "dequantised": (
        lambda a, w, s: a @ (w.float() * s).t(),
        (A, torch.randint(-9, 9, (9, 5), dtype=torch.int8), R(9, 1)),
    ),
    "batch": (lambda a, b: torch.bmm(a * 2, b), (R(3, 7, 5), R(3, 5, 9))),
    "rows of two axes": (lambda a, b: (a * 2).reshape(14, 5) @ b, (R(2, 7, 5), B)),
    "beside an epilogue": (lambda a, w: torch.relu(a @ w.float()), (A, B.bfloat16())),
    "one row": (lambda a, w: a @ (w * 2), (R(1, 5), B)),
}

LEFT: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "nothing to compute": (torch.mm, (A, B)),
    "read by another": (lambda a, b: (w := a * 2) @ b + w.sum(), (A, B)),
    "costly": (
        lambda a, b: a.sin().exp().sin().exp().sin().exp().sin().exp().sin().exp().sin().exp().sin() @ b,
        (A, B),
    ),
    "of another product": (lambda a, b, c: torch.relu(a @ b) @ c, (A, B, R(9, 4))),
    "a running maximum": (lambda a, b: a.cummax(0).values @ b, (A, B)),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", TAKEN)
def test_it_is_timed_and_computes_the_same(run, name):
    function, args = TAKEN[name]
    report, names = run(function, *args)
    assert "interpreter+prologue" in names and "interpreter" in names
    assert report.kernels == 1 and not report.calls
    assert [d.second for d in report.decisions if d.kind == "choice"] == ["interpreter+prologue"]


def test_sizes_that_vary(run):
    report, names = run(lambda a, w: a @ (w * 2), A, B, dynamic=True)
    assert "interpreter+prologue" in names and report.kernels == 1


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", LEFT)
def test_where_it_is_no_way(run, name):
    function, args = LEFT[name]
    _, names = run(function, *args)
    assert "interpreter" in names and "interpreter+prologue" not in names


def test_a_backend_may_refuse_it_with_a_reason(run, monkeypatch):
    def claims(self: InterpreterBackend, node: Node) -> Claim:
        computed = isinstance(node, Reduction) and any(value.op != "load" for value in node.values)
        return No("it computes no operands") if computed else Yes()

    monkeypatch.setattr(InterpreterBackend, "claims", claims)
    report, names = run(*_flat(TAKEN["converted"]), prologue=9.0)
    assert "interpreter" in names and "interpreter+prologue" not in names
    declined = {d.second: d.reason for d in report.decisions if d.kind == "declined"}
    assert declined["interpreter+prologue"] == "it computes no operands"


@pytest.mark.quick(1)
@pytest.mark.parametrize(("milliseconds", "tried"), [(1.0, 3), (9.0, 1)])
def test_more_than_the_first_guess_only_where_that_is_fastest(run, monkeypatch, milliseconds, tried):
    plain = InterpreterBackend.emit

    def emit(self: InterpreterBackend, kernel: Kernel, config: Config | None = None) -> Source:
        found = plain(self, kernel)
        return Source(found.name, found.text, found.language, meta=str(config))

    monkeypatch.setattr(InterpreterBackend, "emit", emit)
    monkeypatch.setattr(InterpreterBackend, "configs", lambda *_: [Config.of(n=n) for n in range(3)])
    _, names = run(*_flat(TAKEN["converted"]), prologue=milliseconds)
    found = {name for name in names if name.startswith("interpreter+prologue")}
    assert len(found) == tried and "interpreter+prologue n=0" in found
    assert {name for name in names if name.startswith("interpreter n=")} == {
        "interpreter n=0",
        "interpreter n=1",
        "interpreter n=2",
    }


def _flat(case: tuple[Any, tuple[torch.Tensor, ...]]) -> tuple[Any, ...]:
    return case[0], *case[1]
