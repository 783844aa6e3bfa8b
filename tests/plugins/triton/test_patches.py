"""Convolutions that cut images into patches become matmuls on GPUs; here the rewrite runs on the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.plugin import Manifest, Rewrite, hookimpl, register, unregister
from polyfuse_triton.patches import REWRITES

NAME = "patches-on-the-host"


class _Plugin:
    """Offers the rewrite on every device."""

    @hookimpl
    def polyfuse_manifest(self) -> Manifest:
        return Manifest(
            name=NAME, version="1", distribution=NAME, api=(2, 0), device_types=(), priority={}, load=""
        )

    @hookimpl
    def polyfuse_rewrites(self, device_type: str) -> Sequence[Rewrite]:
        return REWRITES


@pytest.fixture(autouse=True)
def _on_the_host() -> Iterator[None]:
    register(_Plugin())
    try:
        yield
    finally:
        unregister(NAME)


def _layer(window: Any, channels: int = 3, **options: Any) -> nn.Sequential:
    cut = nn.Conv2d(channels, 16, window, **{"stride": window, **options})
    return nn.Sequential(cut, nn.Flatten(2)).bfloat16()


def _compiled(model: nn.Module, **options: object) -> Any:
    torch.compiler.reset()
    reset_reports()
    chosen = {"backends": ["interpreter"], "graph_cache": False, "strict": True, **options}
    return torch.compile(model, backend="polyfuse", dynamic=False, options=chosen)


def _count() -> int:
    return sum(dict(report.rewrites).get(f"{NAME}.patches-as-rows", 0) for report in last_reports())


def _check(found: Tensor, model: nn.Module, x: Tensor) -> None:
    eager = model(x)
    assert (found.stride(), found.dtype) == (eager.stride(), eager.dtype)
    exact = model.double()(x.double())
    assert (found.double() - exact).norm() <= 1.05 * (eager.double() - exact).norm()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "window, options",
    [(16, {}), ((8, 16), {"bias": False}), (18, {"channels": 1}), (8, {"channels": 4})],
    ids=str,
)
def test_patches_become_rows(window: Any, options: dict[str, Any], channels_last: bool) -> None:
    model, (down, along) = _layer(window, **options), window if isinstance(window, tuple) else (window,) * 2
    x = torch.randn(2, options.get("channels", 3), 3 * down, 5 * along).bfloat16()
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        _check(_compiled(model)(x), model, x)
    assert _count() == 1


@pytest.mark.parametrize(
    "options",
    [{"stride": 8}, {"padding": 1}, {"dilation": 2}, {"channels": 8}, {"channels": 6, "groups": 2}],
    ids=str,
)
def test_other_convolutions_stay(options: dict[str, Any]) -> None:
    model, x = _layer(16, **options), torch.randn(1, options.get("channels", 3), 32, 64).bfloat16()
    with torch.no_grad():
        _check(_compiled(model)(x), model, x)
    assert _count() == 0


def test_what_else_stays() -> None:
    """A border that is cut off, f32, whose convolution may be of fewer digits, numbers of eager mode, and
    small patches.
    """
    cases: list[tuple[Tensor, int, dict[str, object]]] = [
        (torch.randn(1, 3, 34, 32).bfloat16(), 16, {}),
        (torch.randn(1, 3, 32, 32), 16, {}),
        (torch.randn(1, 3, 32, 32).bfloat16(), 16, {"numerics": "eager"}),
        (torch.randn(1, 3, 32, 32).bfloat16(), 4, {}),
    ]
    for x, window, options in cases:
        with torch.no_grad():
            _compiled(_layer(window).to(x.dtype), **options)(x)
        assert _count() == 0


def test_training() -> None:
    model, x = _layer(16), torch.randn(2, 3, 32, 48).bfloat16()
    weight = torch.randn(2, 16, 6).bfloat16()
    (_compiled(model)(x) * weight).sum().backward()
    assert _count() == 1
    found = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    (model(x) * weight).sum().backward()
    for a, p in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=2e-2, atol=2e-2)
