"""Convolutions that cut images into patches are linear layers on CPUs that multiply pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse_cpp.matmul import patches
from requirements import needs_pairs


class Patches(nn.Module):
    def __init__(
        self, window: Any, outputs: int, rows: bool = True, channels: int = 3, **options: Any
    ) -> None:
        super().__init__()
        options = {"stride": window, **options}
        self.cut, self.rows = nn.Conv2d(channels, outputs, window, **options), rows

    def forward(self, x: Tensor) -> Tensor:
        found = self.cut(x)
        return found.flatten(2).transpose(1, 2) * 2 if self.rows else torch.relu(found)


def rewritten(model: nn.Module, x: Tensor, **options: Any) -> int:
    """How many became linear layers; the result is as exact as eager mode's, and lies as that does."""
    torch.compiler.reset()
    reset_reports()
    chosen = {"graph_cache": False, "strict": True, **options}
    with torch.no_grad():
        found = torch.compile(model, backend="polyfuse", dynamic=False, options=chosen)(x)
        eager = model(x)
        exact = model.double()(x.double())
    assert found.stride() == eager.stride() and found.dtype == eager.dtype
    norm = exact.norm()
    assert (found.double() - exact).norm() <= 1.05 * (eager.double() - exact).norm() + 1e-5 * norm
    return sum(dict(report.rewrites).get("cpp.patches-as-rows", 0) for report in last_reports())


def image(*size: int) -> Tensor:
    return torch.randn(*size).bfloat16()


@needs_pairs
@pytest.mark.quick(1)
@pytest.mark.parametrize("freezing", [False, True])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize(
    "window, outputs, bias", [(16, 768, True), (14, 64, False), ((8, 16), 48, True), (32, 32, False)], ids=str
)
def test_patches_become_rows(window: Any, outputs: int, bias: bool, rows: bool, freezing: bool) -> None:
    down, along = window if isinstance(window, tuple) else (window, window)
    model = Patches(window, outputs, rows, bias=bias).bfloat16().eval()
    assert rewritten(model, image(2, 3, 5 * down, 4 * along), freezing=freezing) == 1


@pytest.mark.slow
@needs_pairs
def test_images_with_channels_last() -> None:
    x = image(2, 3, 64, 48).contiguous(memory_format=torch.channels_last)
    assert rewritten(Patches(16, 64).bfloat16().eval(), x) == 1


@pytest.mark.quick(2)
@needs_pairs
@pytest.mark.parametrize(
    "window, options",
    [
        (16, {"stride": 8}),
        (16, {"padding": 1}),
        (16, {"dilation": 2}),
        (4, {}),
        (16, {"channels": 6}),
        (16, {"channels": 4, "groups": 2}),
    ],
    ids=str,
)
def test_other_windows_stay(window: int, options: dict[str, Any]) -> None:
    model = Patches(window, 64, **options).bfloat16().eval()
    assert rewritten(model, image(1, options.get("channels", 3), 64, 64)) == 0


@needs_pairs
def test_a_border_that_is_cut_off_stays() -> None:
    assert rewritten(Patches(16, 64).bfloat16().eval(), image(1, 3, 70, 64)) == 0


@pytest.mark.slow
@needs_pairs
def test_who_asks_for_the_library_gets_it() -> None:
    for options in ({"gemm": "library"}, {"numerics": "eager"}, {"cpp.isa": "avx2"}):
        assert rewritten(Patches(16, 64).bfloat16().eval(), image(1, 3, 64, 64), **options) == 0


def test_nothing_changes_without_products_of_pairs_or_in_f32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rewritten(Patches(16, 64).eval(), torch.randn(1, 3, 32, 32)) == 0
    monkeypatch.setattr(patches, "has_pair_products", lambda isa: False)
    assert rewritten(Patches(16, 64).bfloat16().eval(), image(1, 3, 64, 64)) == 0


@pytest.mark.slow
@needs_pairs
def test_gradients_are_as_before() -> None:
    model, x = Patches(16, 64).bfloat16(), image(2, 3, 64, 64)
    reset_reports()
    torch.compile(model, backend="polyfuse", options={"graph_cache": False})(x).sum().backward()
    found = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    model(x).sum().backward()
    assert all("cpp.patches-as-rows" not in dict(report.rewrites) for report in last_reports())
    for a, p in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=2e-2, atol=2e-2)
