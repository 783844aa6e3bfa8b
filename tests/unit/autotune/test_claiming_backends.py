"""Who generates a launch: the backend it was scheduled for, or the next where that refuses the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfuse.autotune import search as search_module
from polyfuse.autotune.candidate import BuiltProgram
from polyfuse.base.errors import UnsupportedError
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.ir.kernel import Kernel
from polyfuse.kit import match
from polyfuse.plugin import Config, Source
from polyfuse.reference.backend import InterpreterBackend


def test_timing_goes_on_where_the_first_backend_refuses_what_is_no_gemm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names: list[str] = []
    emit = InterpreterBackend.emit

    def only_matmuls(self: Any, kernel: Kernel, config: Config | None = None) -> Source:
        if match(kernel) is None:
            raise UnsupportedError("it is no matmul", "another backend computes it")
        return emit(self, kernel, config)

    def fake(runner: Any, problem: Any, candidates: Sequence[BuiltProgram], *_: Any) -> Mapping[str, float]:
        names.extend(candidate.name for candidate in candidates)
        return {c.name: 2.0 if c.name == "library" else 1.0 for c in candidates}

    monkeypatch.setattr(InterpreterBackend, "autotunes_gemm", True)
    monkeypatch.setattr(InterpreterBackend, "emit", only_matmuls)
    monkeypatch.setattr(search_module, "run_trials", fake)
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    options = {
        "backends": ["interpreter", "cpp"],
        "gemm": "fastest",
        "tune_in_process": True,
        "cache_dir": str(tmp_path),
    }
    x, w = torch.randn(6, 5), torch.randn(5, 7)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w) + 1

    found = torch.compile(function, backend="polyfuse", options=options)(x, w)
    forget_sessions()
    torch.testing.assert_close(found, function(x, w))
    assert "library" in names and "interpreter" in {name.partition(" ")[0] for name in names}
    (choice,) = [d for d in last_reports()[-1].decisions if d.kind == "choice"]
    assert choice.second != "library", choice.reason
