"""Scopes for debugging, and generated code as text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import polyfuse
import preforked
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.settings import Settings, environment
from polyfuse.compiler.reports.report import last_reports, reset_reports

OPTIONS = {"strict": True}


def f(x: torch.Tensor) -> torch.Tensor:
    return (x @ x).relu() + 1


X = torch.randn(8, 8)


def test_observers_see_values_and_names() -> None:
    seen: list[tuple[str, torch.Tensor]] = []
    compiled = torch.compile(f, backend="polyfuse", options={**OPTIONS, "observe": True})
    with polyfuse.observing(lambda name, value: seen.append((name, value.clone()))) as observed:
        result = compiled(X)
    assert observed.count == len(seen) >= 2
    torch.testing.assert_close(seen[-1][1], result)
    torch.testing.assert_close(seen[0][1], X @ X)
    assert "mm" in seen[0][0] and all(name for name, _ in seen)
    compiled(X)
    assert observed.count == len(seen), "the scope is over"


class TestFreshCache:
    def test_files_are_made_inside_and_go_with_the_scope(self) -> None:
        before = environment("POLYFUSE_CACHE_DIR")
        sizes = []
        for _ in range(2):  # the second one compiles again
            reset_reports()
            with polyfuse.fresh_cache() as fresh:
                assert Settings.resolve().cache_dir == str(fresh.path)
                torch.testing.assert_close(torch.compile(f, backend="polyfuse")(X), f(X))
                assert any(fresh.path.rglob("*"))
            assert not fresh.path.exists()
            assert any(name.startswith("kernels/") for name in fresh.files)
            assert not last_reports()[-1].cached
            sizes.append(len(fresh.files))
        assert environment("POLYFUSE_CACHE_DIR") == before and all(sizes)

    def test_an_exception_keeps_the_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ZeroDivisionError), polyfuse.fresh_cache(tmp_path) as fresh:
            raise ZeroDivisionError
        assert fresh.path.exists() and fresh.path.parent == tmp_path


def test_debug_folders_nest_and_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYFUSE_DUMP", str(tmp_path / "dumps"))
    with polyfuse.debug_folder() as outer:
        with polyfuse.debug_folder(keep=True) as inner:
            torch.compile(f, backend="polyfuse", options={"graph_cache": False})(X)
        assert Settings.resolve().dump == str(outer) != str(inner)
    assert Settings.resolve().dump == str(tmp_path / "dumps")
    assert not outer.exists() and list(inner.rglob("program.py"))
    assert inner.parent == tmp_path or inner.parent.parent == tmp_path


class TestCode:
    def test_it_comes_with_the_result(self) -> None:
        result, (graph,) = polyfuse.run_and_get_code(f, X, options=OPTIONS)
        torch.testing.assert_close(result, f(X))
        assert "def call(args)" in graph.program and len(graph.kernels) == 1
        (kernel,) = graph.kernels.values()
        assert "k_" in kernel and kernel in str(graph)

    def test_results_keep_their_gradients(self) -> None:
        x = X.clone().requires_grad_()
        result, graphs = polyfuse.run_and_get_code(f, x, options=OPTIONS)
        (grad,) = torch.autograd.grad(result.sum(), x)
        torch.testing.assert_close(grad, torch.autograd.grad(f(x).sum(), x)[0])
        assert graphs[0].name.startswith("forward")

    def test_nothing_runs_if_only_the_code_is_asked_for(self) -> None:
        x = X.clone()

        def writes(x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return (x @ x).relu()

        graphs = polyfuse.get_code(writes, x, options=OPTIONS)
        assert len(graphs) == 1 and graphs[0].kernels
        torch.testing.assert_close(x, X)
        with pytest.raises(UnsupportedError, match="nothing was compiled"):
            polyfuse.get_code(lambda: 3)


def test_a_dumped_program_times_its_kernels(tmp_path: Path) -> None:
    options = {"dump": str(tmp_path), "benchmark_harness": True, "graph_cache": False, **OPTIONS}
    torch.compile(f, backend="polyfuse", options=options)(X)
    (script,) = tmp_path.rglob("program.py")
    run = preforked.run("import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')", str(script))
    assert run.returncode == 0, run.stderr
    assert "us a call" in run.stdout and "without" not in run.stdout
