"""Build workers are started while a graph is lowered, unless its kernels will be found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin import Backend
from polyfuse.workers import BuildPool


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """About how many kernels workers were started for, by graph."""
    found: list[int] = []

    def prepare(pool: BuildPool, backend: Backend, kernels: int) -> None:
        found.append(kernels)

    monkeypatch.setattr(BuildPool, "prepare", prepare)
    return found


def run(folder: Path, fn: Callable[..., Any], *args: torch.Tensor, **options: Any) -> None:
    """As in a process that only just began."""
    torch.compiler.reset()
    forget_sessions()
    chosen = {"backends": ["interpreter"], "cache_dir": str(folder), "strict": True, **options}
    torch.testing.assert_close(torch.compile(fn, backend="polyfuse", options=chosen)(*args), fn(*args))


def test_once_for_each_graph(prepared: list[int], tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 1

    def other(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 2

    for _ in range(3):
        run(tmp_path, fn, torch.ones(3))
    assert len(prepared) == 1
    changes: list[Callable[[], None]] = [
        lambda: run(tmp_path, other, torch.ones(3)),
        lambda: run(tmp_path, fn, torch.ones(4)),
        lambda: run(tmp_path, fn, torch.ones(3, dtype=torch.float64)),
        lambda: run(tmp_path, fn, torch.ones(3), reuse_buffers=False),
        lambda: run(tmp_path / "other", fn, torch.ones(3)),
    ]
    for count, change in enumerate(changes, 2):
        for _ in range(2):
            change()
        assert len(prepared) == count


def test_each_time_where_nothing_is_cached(prepared: list[int], tmp_path: Path) -> None:
    for _ in range(2):
        run(tmp_path, torch.sin, torch.ones(3), cache=False)
    assert len(prepared) >= 1
