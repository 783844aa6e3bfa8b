"""Resampling against eager mode: sizes that divide and that do not, both kinds of corners, gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowered import check, compiled

F = torch.nn.functional
MODES: list[dict[str, Any]] = [
    {"mode": "nearest"},
    {"mode": "nearest-exact"},
    {"mode": "bilinear"},
    {"mode": "bilinear", "align_corners": True},
]


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", MODES, ids=str)
@pytest.mark.parametrize("size", [(10, 12), (7, 2), (1, 25)])
def test_sizes(how: dict[str, Any], size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, 5, 6)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = x.detach().requires_grad_(True)
        out = F.interpolate(leaf, size=size, **how)
        return out.detach() + 1, torch.autograd.grad((out**2).sum(), leaf)[0]

    check(both, x)


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", [*MODES, pytest.param({"mode": "bicubic"}, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_scales(how: dict[str, Any], dynamic: bool) -> None:
    x = torch.randn(2, 3, 5, 6)
    for scale in (2.0, 1.7):
        check(lambda x, scale=scale: F.interpolate(x, scale_factor=scale, **how), x, dynamic=dynamic)


@pytest.mark.quick(1)
@pytest.mark.parametrize("corners", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradients_of_many_terms_read_their_shares(corners: bool) -> None:
    aten = torch.ops.aten

    def grads(flat: torch.Tensor, solid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            aten.upsample_bicubic2d_backward(flat, [7, 3], [1, 2, 3, 5], corners),
            aten.upsample_trilinear3d_backward(solid, [4, 6, 5], [1, 1, 2, 3, 2], corners),
        )

    last = torch.randn(1, 2, 7, 3).to(memory_format=torch.channels_last)
    record = check(grads, last, torch.randn(1, 1, 4, 6, 5))
    assert record.kinds().count("Reduction") == 2


@pytest.mark.slow
def test_gradients_of_cubic_resampling() -> None:
    def both(x: torch.Tensor, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = x.detach().requires_grad_(True)
        out = F.interpolate(leaf, mode="bicubic", **how)
        return out.detach() + 1, torch.autograd.grad((out**2).sum(), leaf)[0]

    ways = ({"scale_factor": 1.7}, {"scale_factor": 0.4}, {"size": (1, 9)}, {"size": (5, 6)})
    for how, corners in itertools.product(ways, (False, True)):
        check(lambda x, w={**how, "align_corners": corners}: both(x, **w), torch.randn(2, 3, 5, 6))
    check(lambda x: both(x, scale_factor=2.0), torch.randn(1, 2, 1, 6))
    check(lambda x: both(x, scale_factor=2.0), torch.randn(1, 2, 4, 6, dtype=torch.float64))


def test_doubling_needs_no_arithmetic_on_data() -> None:
    x = torch.randn(2, 3, 5, 6)
    record = check(lambda x: F.interpolate(x, scale_factor=2) + 1, x)
    assert record.kinds() == ["Pointwise"]
    (node,) = record.graph.nodes
    assert "@0" not in repr(node)


def test_dynamic_ratio_is_computed_in_the_kernel() -> None:
    x = torch.randn(2, 3, 5, 6)
    check(lambda x: F.interpolate(x, size=(7, 9)), x, dynamic=True)


@pytest.mark.slow
def test_ranks_types_layouts() -> None:
    y, z = torch.randn(2, 3, 7), torch.randn(1, 2, 3, 4, 5)
    for mode in ("nearest", "linear"):
        check(lambda y, mode=mode: F.interpolate(y, scale_factor=1.5, mode=mode), y)
    for mode in ("nearest", "trilinear"):
        check(lambda z, mode=mode: F.interpolate(z, size=(5, 6, 8), mode=mode), z)
    x = torch.randn(2, 3, 5, 6)
    check(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x.bfloat16())
    check(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x.to(memory_format=torch.channels_last)
    )
    check(lambda x: F.interpolate(x, scale_factor=2), (x * 10).to(torch.uint8))


SAMPLINGS = list(
    itertools.product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True))
)


# all of them are slow to trace
ZEROS = [("bilinear", "zeros", False), ("nearest", "zeros", True), ("bicubic", "zeros", False)]
FEW = [("bilinear", "zeros", False), ("bicubic", "reflection", True), ("nearest", "border", False)]


def sampling(ways: list[tuple[str, str, bool]]) -> Callable[..., list[torch.Tensor]]:
    """A function that samples in several ways."""

    def sampled(x: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        return [F.grid_sample(x, grid, mode, padding, corners) for mode, padding, corners in ways]

    return sampled


sampled_in_few_ways = sampling(FEW)


def sampled_grid() -> torch.Tensor:
    """Positions inside, outside, and on the border."""
    grid = torch.rand(2, 4, 5, 2) * 3 - 1.5
    grid[0, 0, :3] = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]])
    return grid


@pytest.mark.parametrize(
    "ways",
    [[*FEW, ("bilinear", "reflection", False)], pytest.param(SAMPLINGS, marks=pytest.mark.slow)],
    ids=["few", "all"],
)
def test_sampled_grid(ways: list[tuple[str, str, bool]]) -> None:
    check(sampling(ways), torch.randn(2, 3, 5, 6), sampled_grid())


# with symbols for sizes, tracing the sixteen pixels of one bicubic sample takes ten seconds
@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=pytest.mark.slow if "bicubic" in w else ()) for w in FEW]
)
def test_sampled_grid_of_any_size(way: tuple[str, str, bool]) -> None:
    check(sampling([way]), torch.randn(2, 3, 5, 6), sampled_grid(), dynamic=True)


@pytest.mark.slow
def test_sampled_grid_in_other_types_and_layouts() -> None:
    x, grid = torch.randn(2, 3, 5, 6), sampled_grid()
    check(sampled_in_few_ways, x.to(memory_format=torch.channels_last), grid)
    check(sampled_in_few_ways, torch.randn(2, 3, 10, 6)[:, :, ::2, :5].double(), grid.double())
    check(sampled_in_few_ways, torch.randn(2, 3, 1, 1), grid)


@pytest.mark.parametrize(
    "ways", [ZEROS, pytest.param(SAMPLINGS, marks=pytest.mark.slow)], ids=["zeros", "all"]
)
def test_pixels_outside_count_as_zero_whatever_lies_at_the_border(ways: list[tuple[str, str, bool]]) -> None:
    x, grid = torch.randn(2, 3, 5, 6), sampled_grid()
    x[0, :, 0, 0], x[1, :, -1, -1], x[1, :, 2, 3] = torch.inf, -torch.inf, torch.nan
    grid[1, 0, 0, 0], grid[1, 1, 1, 1] = torch.nan, torch.nan
    grid[1, 2] = torch.tensor([[1e9, 0.0], [-1e9, 0.0], [0.0, 3e38], [0.5, -3e38], [9.0, 9.0]])
    check(sampling(ways), x, grid)


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_gradients_of_varying_sizes(mode: str) -> None:
    x = torch.randn(2, 3, 5, 6)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    run, record = compiled(lambda x: F.interpolate(x, scale_factor=2, mode=mode), dynamic=True)
    (run(mine) ** 2).sum().backward()
    (F.interpolate(theirs, scale_factor=2, mode=mode) ** 2).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    assert len(record.report.fallbacks) == (mode == "bilinear"), record.report.text()


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_a_batch_of_none_has_a_gradient(mode: str) -> None:
    x = torch.zeros(0, 3, 4, 4, requires_grad=True)
    call, _ = compiled(lambda x: F.interpolate(x, scale_factor=2, mode=mode))
    result = call(x)
    assert result.shape == (0, 3, 8, 8) and result.is_contiguous() and result.requires_grad
    result.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
