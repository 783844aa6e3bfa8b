"""Candidates that name a plugin, of Polyfuse or of Inductor, and the table that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from polyfuse_bench.backends import compiled
from polyfuse_bench.report import write_pages
from polyfuse_bench.results import write_results


@pytest.mark.parametrize(
    ("name", "backend", "options"),
    [
        ("inductor@halide", "inductor", {"cpu_backend": "halide", "cuda_backend": "halide"}),
        ("polyfuse@halide", "polyfuse", {"backends": ["halide", "interpreter"]}),
    ],
)
def test_a_name_becomes_options(
    monkeypatch: pytest.MonkeyPatch, name: str, backend: str, options: dict[str, Any]
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch, "compile", lambda function, **kwargs: given.update(kwargs) or function)
    compiled(torch.sin, name)
    assert given["backend"] == backend and given["options"] == options


def timing(name: str, seconds: float) -> dict[str, Any]:
    parts = dict.fromkeys(("low", "high", "best"), seconds)
    return {"name": name, "median": seconds, **parts, "rounds": 3, "calls_per_sample": 1}


def test_the_plugin_that_is_named_last_is_looked_at(tmp_path: Path) -> None:
    names = ("eager", "inductor@halide", "polyfuse@cpp", "polyfuse@halide")
    times = [timing(name, seconds) for name, seconds in zip(names, (4e-3, 3e-3, 1e-3, 2e-3), strict=True)]
    fields = {"name": "softmax", "size": "large", "train": False, "errors": {names[3]: 1e-7}}
    rows = [
        {**fields, "timings": times, "failures": {}},
        {**fields, "timings": times[:1], "failures": {names[1]: "RuntimeError: no | such"}},
    ]
    write_results("kernels", rows, path=tmp_path / "kernels-halide.json", backends=names)
    write_pages(tmp_path, tmp_path)
    text = (tmp_path / "performance.md").read_text()
    assert "## Kernels, halide beside others" in text
    assert "2.00× | 1.50× | 0.50×" in text
    assert "| softmax | Inductor (halide) | RuntimeError: no \\| such |" in text
