"""Points side by side that share what they load: windows that overlap, with the channels last."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cpp_kernels import KernelBuilder, backend, build_together, compiled
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.types import DType

f32 = DType.f32


def windows(
    height: int,
    width: int,
    channels: int,
    step: int = 1,
    margin: int = 1,
    dtype: DType = f32,
    mode: str = "set",
    taps: int = 3,
    weighted: bool = True,
) -> Kernel:
    """Weighted sums of windows of two images, channels last, with zeros around them."""
    down, over = ((n + 2 * margin - taps) // step + 1 for n in (height, width))
    k = KernelBuilder({"x0": 2, "x1": down, "x2": over, "x3": channels})
    k.arg("a", dtype), k.arg("w", dtype), k.out("o", dtype)
    s = k.section()
    zero = s.const(0.0, dtype)
    total = zero
    for at in range(taps * taps):
        y, x = k["x1"] * step + (at // taps - margin), k["x2"] * step + (at % taps - margin)
        mask = None
        for index, size in ((y, height), (x, width)) if margin else ():
            for test in (s.op("ge", s.index(index), s.index(0)), s.op("lt", s.index(index), s.index(size))):
                mask = test if mask is None else s.op("bitwise_and", mask, test)
        where = ((k["x0"] * height + y) * width + x) * channels + k["x3"]
        read = s.load("a", where, mask=mask, other=zero if margin else None)
        weight = s.load("w", k["x3"] + at * channels) if weighted else s.const(0.5, dtype)
        total = s.op("add", total, s.op("mul", read, weight))
    s.store("o", ((k["x0"] * down + k["x1"]) * over + k["x2"]) * channels + k["x3"], total, mode=mode)
    kernel, sizes = k.build(), (2 * height * width, taps * taps, 2 * down * over)
    return replace(
        kernel, args=tuple(replace(a, numel=n * channels) for a, n in zip(kernel.args, sizes, strict=True))
    )


def agrees(kernel: Kernel, channels: int, isa: str = "") -> None:
    """Whether a kernel stores what the interpreter does, and nothing behind it; one position is NaN."""
    image, weight, out = (torch.randn(_extent(a.numel)).to(a.dtype.torch) for a in kernel.args)
    image[len(image) // 2 // channels * channels] = float("nan")
    wanted, fenced = out.clone(), torch.cat((out, out))
    run = compiled(kernel, isa)  # first, so that those built ahead are interpreted once
    run_kernel(kernel, [image, weight, wanted])
    run(image, weight, fenced[: len(out)])
    torch.testing.assert_close(fenced[: len(out)], wanted, equal_nan=True)
    assert torch.equal(fenced[len(out) :], out)


def _extent(numel: object) -> int:
    assert isinstance(numel, int)
    return numel


def text_of(kernel: Kernel) -> str:
    return backend("avx2").emit(kernel).text


@pytest.mark.quick(1)
@pytest.mark.parametrize("width", [3, 4, 5, 6, 7, 9, 14, 21])
def test_rows_of_any_length(width: int) -> None:
    kernels = [windows(17, width, 24, step) for step in (1, 2)]
    build_together(kernels)
    for kernel in kernels:
        agrees(kernel, 24)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [8, 16, 17, 40])
def test_any_number_of_channels(channels: int) -> None:
    kernels = [
        windows(20, 11, channels),
        windows(20, 11, channels, margin=0),
        windows(20, 13, channels, margin=2, taps=5),
    ]
    build_together(kernels)
    for kernel in kernels:
        agrees(kernel, channels)


@pytest.mark.quick(2)
@pytest.mark.parametrize("isa", ["avx2", "sse"])
@pytest.mark.parametrize("dtype", [f32, DType.f64])
def test_on_other_vectors(isa: str, dtype: DType) -> None:
    agrees(windows(18, 10, 32, dtype=dtype), 32, isa)


def test_what_several_load_is_loaded_once() -> None:
    text = text_of(windows(34, 34, 32))
    assert "item + 4 <= end" in text and "item += 3" in text
    together = text[text.index("item + 4 <= end") : text.index("item += 3")]
    whole = together[together.index("for (") : together.index("store(")]
    assert whole.count("load<Vec>(arg_1") == 9 and whole.count("load<Vec>(arg_0") == 3 * 6


def test_large_images_are_asked_for_ahead() -> None:
    assert "__builtin_prefetch" not in text_of(windows(34, 34, 32))
    text = text_of(windows(130, 130, 64))
    # of three rows only the last one is new, and of its six positions those that the next points add
    first = text[text.index("item + 4 <= end") :]
    assert first[: first.index("load<Vec>")].count("__builtin_prefetch") == 4


def test_what_adds_to_memory_or_shares_nothing_goes_point_by_point() -> None:
    assert "<= end)" not in text_of(windows(34, 34, 32, mode="add"))
    assert "<= end)" not in text_of(windows(33, 33, 32, step=3))


def test_windows_that_share_a_quarter_and_no_weights_go_point_by_point() -> None:
    assert "<= end)" in text_of(windows(34, 34, 32, step=2))
    assert "<= end)" not in text_of(windows(34, 34, 32, step=2, weighted=False))
    agrees(windows(34, 34, 32, step=2, weighted=False), 32)
