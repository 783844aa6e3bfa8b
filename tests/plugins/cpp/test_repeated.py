"""What all points of an axis compute alike is computed once for each vector, which then runs along it."""

from __future__ import annotations

import pytest
import torch

from cpp_kernels import KernelBuilder, backend, compiled
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, axis, symbol

f32, i32, i64 = DType.f32, DType.i32, DType.i64
pytestmark = pytest.mark.each_value
LOOP = "for (i64 axis_1 = 0;"


def sampled(images: IndexLike, channels: IndexLike, points: IndexLike, pixels: int = 50) -> KernelBuilder:
    """``a[image, channel, int(w)] * exp(w)`` for a position ``w`` of each image's points."""
    k = KernelBuilder({"x0": images, "x1": channels, "x2": points}, hints=(4, 3, 900))
    k.arg("a"), k.arg("w"), k.out("o")
    s = k.section()
    where = s.load("w", k["x0"] * points + k["x2"])
    pixel = s.op("minimum", s.op("maximum", s.cast(where, i32), s.const(0, i32)), s.const(pixels - 1, i32))
    weight = s.op("exp", where)
    row = (k["x0"] * channels + k["x1"]) * pixels
    found = s.load("a", row + axis("@0", pixels), s.cast(pixel, i64))
    s.store("o", (k["x0"] * channels + k["x1"]) * points + k["x2"], s.op("mul", found, weight))
    for size in (images, channels, points):
        if not isinstance(size, int):
            k.size(str(size))
    return k


def expected(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    pixel = w.to(torch.int32).clamp(0, a.shape[2] - 1).long()
    return a.gather(2, pixel[:, None].expand(-1, a.shape[1], -1)) * w.exp()[:, None]


@pytest.mark.quick(1)
@pytest.mark.parametrize("isa", ["", "avx2", "sse"])
@pytest.mark.parametrize("shape", [(4, 3, 512), (3, 16, 517), (1, 2, 1025)])
def test_channels_share_positions_and_weights(shape: tuple[int, int, int], isa: str) -> None:
    kernel = sampled(*shape).build()
    assert LOOP in backend(isa).emit(kernel).text
    images, channels, points = shape
    a, w = torch.randn(images, channels, 50), torch.rand(images, points) * 6 - 1
    w[0, 0], w[-1, -1] = -1e9, 1e9
    o = torch.full(shape, torch.nan)
    compiled(kernel, isa)(a, w, o)
    torch.testing.assert_close(o, expected(a, w))


@pytest.mark.parametrize(("channels", "name"), [(3, "gather"), (16, "gather_again")])
def test_many_channels_take_lanes_out_of_an_index_once(channels: int, name: str) -> None:
    assert f" {name}(" in backend().emit(sampled(4, channels, 517).build()).text


def test_sizes_need_not_be_known() -> None:
    kernel = sampled(symbol("s0"), symbol("s1"), symbol("s2")).build()
    assert LOOP in backend().emit(kernel).text
    for images, channels, points in ((1, 1, 1), (3, 5, 77), (2, 0, 9), (2, 4, 1000)):
        a, w = torch.randn(images, channels, 50), torch.rand(images, points) * 50
        o = torch.full((images, channels, points), torch.nan)
        compiled(kernel)(a, w, o, images, channels, points)
        torch.testing.assert_close(o, expected(a, w))


def test_few_points_are_left_to_threads() -> None:
    assert LOOP not in backend().emit(sampled(4, 64, 100).build()).text


def test_what_is_cheap_is_computed_again() -> None:
    k = KernelBuilder({"x0": 4, "x1": 16, "x2": 1024})
    k.arg("a"), k.arg("w"), k.out("o")
    s = k.section()
    at = (k["x0"] * 16 + k["x1"]) * 1024 + k["x2"]
    s.store("o", at, s.op("mul", s.load("a", at), s.load("w", k["x0"] * 1024 + k["x2"])))
    assert LOOP not in backend().emit(k.build()).text
