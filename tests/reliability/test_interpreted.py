"""Kernels that only the interpreter takes: with one warning, never under `strict`, and named by `explain`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polyfuse.compiler.reports.explain import explain
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.plugin import No
from polyfuse_cpp import generator

X = torch.randn(3, 40)


def f(x: torch.Tensor) -> torch.Tensor:
    return x.cos() + 1


def run(**options: Any) -> None:
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(f, backend="polyfuse", options=options)(X), f(X))


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C++ backend, without cosines."""
    claim = generator.claim
    monkeypatch.setattr(
        generator, "claim", lambda n: No("it has no cosine") if "cos(" in str(n) else claim(n)
    )
    reset_reports()


def test_one_warning_names_operator_type_and_reason(picky, warned):
    run()
    again = torch.compile(lambda x: x.cos() + 1, backend="polyfuse")
    torch.testing.assert_close(again(X), f(X))
    (text,) = warned
    assert "aten.cos.default" in text and "float32" in text and "cpp: it has no cosine" in text
    assert "test_interpreted.py" in text and last_reports()[-1].launches[0].backend == "interpreter"


def test_strict_refuses_it(picky):
    with pytest.raises(Exception, match=r"aten\.cos\.default.*would be interpreted.*no cosine"):
        run(strict=True)


def test_who_asks_for_it_is_not_warned(picky, warned):
    run(backends=["cpp", "interpreter"], strict=True)
    assert not warned


def test_where_nobody_compiles(warned):
    run(disable=["cpp", "halide"])
    (text,) = warned
    assert "no backend compiles kernels for device type 'cpu'" in text and "'interpreter'" in text
    with pytest.raises(Exception, match="'cpp' is disabled"):
        run(disable=["cpp", "halide"], strict=True)


def test_no_backend_claims_it(picky, warned):
    run(backends=["cpp"])
    (text,) = warned
    assert "aten.cos.default" in text and "eager mode" in text and "no cosine" in text


def test_strict_with_a_missing_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent")
    for _ in range(2):
        with pytest.raises(Exception, match=r"BackendUnavailableError: backend 'cpp'.*/nonexistent"):
            run(strict=True)


def test_explain_names_who_runs_it(monkeypatch, tmp_path, warned):
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\ncase "$1" in -v) echo "gcc version 1.0" >&2;; *) exit 1;; esac\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    reset_reports()
    run()
    assert last_reports()[-1].launches[0].backend == "interpreter"
    assert "(interpreter, " in explain() and "cpp failed: " in explain()


@pytest.mark.parametrize("kind", ["float8_e8m0fnu", "float4_e2m1fn_x2"])
def test_floats_that_eager_mode_only_moves(kind: str, warned):
    dtype = getattr(torch, kind)
    x = torch.arange(8, dtype=torch.uint8).view(dtype)
    found = torch.compile(lambda x: torch.cat([x, x]), backend="polyfuse")(x)
    assert torch.equal(found.view(torch.uint8), torch.cat([x, x]).view(torch.uint8))
    (text,) = warned
    assert f"aten.cat.default on {kind} falls back to eager" in text
