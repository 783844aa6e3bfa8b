"""Packed weights that the C++ backend's matmuls read, packed once with freezing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autotuning import Run, reasons, try_one_configuration, with_times
from polyfuse.compiler.reports.report import last_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse_cpp.backend import CppBackend
from polyfuse_cpp.isa import detect_isa

LAYS_OUT = "frozen.aten.as_strided_copy.default"
LAYER = torch.nn.Linear(24, 128)
TRANSPOSED = torch.nn.Parameter(torch.randn(24, 96))
WIDE = torch.nn.Linear(24, 128, dtype=torch.float64)
X, OTHER = torch.randn(2, 7, 24), torch.randn(2, 7, 128)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """Compile and run a function where packed weights win."""
    try_one_configuration(monkeypatch, CppBackend)
    yield with_times(monkeypatch, tmp_path, {"cpp+packed": 1.0})
    forget_sessions()


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("function", "args", "weight"),
    [
        (LAYER, (X,), LAYER.weight),
        (lambda x: F.linear(x, LAYER.weight), (X[0],), LAYER.weight),
        (lambda x: F.gelu(LAYER(x)), (X,), LAYER.weight),
        (lambda x, r: r + LAYER(x), (X, OTHER), LAYER.weight),
        (lambda x: torch.relu(x @ TRANSPOSED), (X,), TRANSPOSED),
        (WIDE, (X.double(),), WIDE.weight),
    ],
    ids=["bias", "alone", "gelu", "residual", "columns side by side", "f64"],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_laid_out_once_and_again_after_a_change(
    run: Run, function: Callable[..., Any], args: tuple[torch.Tensor, ...], weight: Any, dynamic: bool
) -> None:
    report = run(function, *args, freezing=True, change=weight, dynamic=dynamic)
    assert report.calls == (LAYS_OUT,) and report.kernels == 1
    assert any(name.startswith("cpp+packed path=5") for name in reasons(report))


@pytest.mark.slow
def test_two_layers_have_packed_weights_of_their_own(run: Run) -> None:
    first, second = torch.nn.Linear(24, 64), torch.nn.Linear(64, 32)
    model = torch.nn.Sequential(first, torch.nn.Tanh(), second, torch.nn.Tanh(), first)
    model[4] = torch.nn.Linear(32, 64)
    report = run(model, X[0], freezing=True, change=second.weight)
    assert report.calls == (LAYS_OUT,) * 3


class Written(nn.Module):
    """Three layers, and a write to the weight of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        self.layers[0].weight.mul_(0.5)
        return x


@pytest.mark.slow
def test_packed_weights_are_inputs_but_not_one_that_is_written(run: Run, tmp_path: Path) -> None:
    run(LAYER, X)  # decides times
    model, plain, x = Written(), Written(), torch.randn(7, 32)
    plain.load_state_dict(model.state_dict())
    options = {"gemm": "fastest", "tune_in_process": True, "strict": True, "freezing": True}
    call = torch.compile(model, backend="polyfuse", options={**options, "cache_dir": str(tmp_path)})
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(call(x), plain(x))
            torch.testing.assert_close(model.layers[0].weight, plain.layers[0].weight)
            for changed in (model, plain):
                changed.layers[2].weight.add_(0.1)
    report = last_reports()[-1]
    assert report.calls.count(LAYS_OUT) == 2 and len(report.calls) == 2 + report.extern_calls


@pytest.mark.slow
def test_weights_that_are_not_laid_out(run: Run) -> None:
    assert "cpp+packed" not in reasons(run(LAYER, X))
    cases: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
        "no parameter": (lambda x, w: LAYER(x @ w), (X[0], torch.randn(24, 24))),
        "a part of a parameter": (lambda x: x[:, :12] @ TRANSPOSED[12:, :64], (X[0],)),
        "40 columns are no multiple of": (torch.nn.Linear(24, 40), (X[0],)),
    }
    for reason, (function, args) in cases.items():
        found = reasons(run(function, *args, freezing=True))
        assert reason in found.get("cpp+packed", ""), (reason, found)


@pytest.mark.slow
@pytest.mark.parametrize(("extent", "packs"), [(5, True), (3, False), (33, False)], ids=["25", "9", "1089"])
def test_a_convolution_of_some_pixels_reads_a_weight_that_is_packed_once(extent: int, packs: bool) -> None:
    """Fewer pixels read it as it is, and more do not notice how long packing takes."""
    forget_sessions()
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(64)
    model = nn.Sequential(nn.Conv2d(17, 64, 1, bias=False), norm, nn.ReLU(), nn.Conv2d(64, 40, 1)).eval()
    options = {"strict": True, "freezing": True}
    call = torch.compile(model, backend="polyfuse", options=options, dynamic=False)
    x = torch.randn(1, 17, extent, extent)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-5, equal_nan=True)
            model[0].weight.mul_(-0.5)
            norm.running_mean.add_(0.25)
        x[0, 3, 1, 2] = float("nan")
    # the 40 columns of the second fill no pairs of vectors
    assert last_reports()[-1].calls.count(LAYS_OUT) == (packs and detect_isa().register_bytes >= 32)


def test_a_backend_that_fails_loses_packed_weights_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: CppBackend, product: object) -> int:
        raise ValueError("no idea")

    monkeypatch.setattr(CppBackend, "packed_width", fails)
    found = reasons(run(LAYER, X, freezing=True))
    assert found["cpp+packed"] == "it raised ValueError: no idea"
