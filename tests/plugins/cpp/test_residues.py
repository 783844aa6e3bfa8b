"""A lane axis that indices divide by a small number: phases of it, and stores that are interleaved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cpp_kernels import KernelBuilder, backend, build_together, compiled
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, symbol

f32, i64, boolean = DType.f32, DType.i64, DType.bool
pytestmark = pytest.mark.each_value
ISAS = ("", "avx2", "sse")
DTYPES = (f32, DType.f64, DType.bf16, DType.f16, i64, DType.i8, boolean)


def filled(count: int, dtype: DType) -> Tensor:
    """Values of a type, some of them negative zeros and infinities where it has these."""
    values = torch.randn(count) * 20
    if dtype.is_float:
        values[::7], values[3::11] = -0.0, float("-inf")
    return (values > 0) if dtype is boolean else values.to(dtype.torch)


def repeated(size: IndexLike, by: int, dtype: DType, hint: int = 0) -> KernelBuilder:
    """Each element of a row `by` times, from an odd index on, and zeros where there is none."""
    hints = (3, hint) if hint else ()
    k = KernelBuilder({"x0": 3, "x1": size}, hints=hints)
    k.arg("a", dtype), k.arg("b", dtype), k.out("o", dtype)
    s = k.section()
    index = (k["x1"] + 1) // by
    exists = s.op("ge", s.index((k["x1"] + 1) % by + index), s.index(1))
    zero = s.const(False if dtype is boolean else 0.0 if dtype.is_float else 0, dtype)
    count = (size + 1) // by + 1
    first = s.load("a", k["x0"] * count + index, mask=exists, other=zero)
    second = s.load("b", k["x0"] * size + k["x1"])
    wide = f32 if dtype in (DType.bf16, DType.f16) else dtype
    late = s.op("gt", s.index(k["x1"]), s.index(k["x0"] * 9))
    chosen = s.op("where", late, s.cast(first, wide), s.cast(second, wide))
    s.store("o", k["x0"] * size + k["x1"], s.cast(chosen, dtype))
    if not isinstance(size, int):
        k.size("s0")
    return k


def agrees(kernel: Kernel, isa: str, inputs: list[Tensor], out: Tensor, *sizes: int) -> None:
    """Whether a kernel stores what the interpreter stores, and nothing behind it."""
    run = compiled(kernel, isa)  # first, so that those built ahead are interpreted once
    wanted, fenced = out.clone(), torch.cat((out, out))
    tensors = [*inputs, wanted]
    sized = [replace(a, numel=t.numel()) for a, t in zip(kernel.args, tensors, strict=False)]
    run_kernel(replace(kernel, args=(*sized, *kernel.args[len(tensors) :])), [*tensors, *sizes])
    run(*inputs, fenced[: out.numel()], *sizes)
    assert torch.equal(fenced[: out.numel()], wanted)
    assert torch.equal(fenced[out.numel() :], out)


@pytest.mark.quick(1)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", [2, 3, 4])
def test_phases_give_what_the_interpreter_gives(by: int, dtype: DType, isa: str) -> None:
    sizes = (16, 17, 37, 96) if dtype is f32 else (37, 96)
    kernels = {size: repeated(size, by, dtype).build() for size in sizes}
    build_together(kernels.values(), isa=isa)
    for size, kernel in kernels.items():
        if isa == "":
            assert "store_interleaved" in backend(isa).emit(kernel).text
        inputs = [filled(3 * ((size + 1) // by + 1), dtype), filled(3 * size, dtype)]
        agrees(kernel, isa, inputs, filled(3 * size, dtype))


@pytest.mark.quick(1)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("by", [2, 3])
def test_an_axis_of_a_size_that_is_not_known(by: int, isa: str) -> None:
    kernel = repeated(symbol("s0", 1), by, f32, hint=64).build()
    assert "store_interleaved_n" in backend().emit(kernel).text
    for size in (1, 2, 3, 15, 16, 31, 33, 64, 65, 100, 257):
        inputs = [filled(3 * ((size + 1) // by + 1), f32), filled(3 * size, f32)]
        agrees(kernel, isa, inputs, filled(3 * size, f32), size)


def test_what_cannot_be_interleaved_is_left_alone() -> None:
    """Stores with a condition, at indices that data say, and of elements that lie apart."""

    def with_condition(k: KernelBuilder, value: str) -> None:
        s = k.bodies[0]
        s.store("o", k["x0"], value, mask=s.op("gt", value, s.const(0.0)))

    def by_data(k: KernelBuilder, value: str) -> None:
        s = k.bodies[0]
        s.store("o", k["x0"] * 0, value, s.index(k["x0"]))

    def apart(k: KernelBuilder, value: str) -> None:
        k.bodies[0].store("o", k["x0"] * 2, value)

    ways: list[Callable[[KernelBuilder, str], None]] = [with_condition, by_data, apart]
    for way in ways:
        k = KernelBuilder({"x0": 64})
        k.arg("a"), k.out("o")
        way(k, k.section().load("a", k["x0"] // 2))
        assert "store_interleaved" not in backend().emit(k.build()).text


def test_questions_about_remainders_are_answered() -> None:
    k = KernelBuilder({"x0": 64})
    k.arg("a"), k.out("o")
    s = k.section()
    x = k["x0"]
    even = s.op("eq", s.index(x % 2), s.const(0, i64))
    s.store("o", x, s.load("a", x // 2, mask=even, other=s.const(7.0)))
    kernel = k.build()
    text = backend().emit(kernel).text
    assert "masked" not in text and "window" not in text
    agrees(kernel, "", [filled(32, f32)], filled(64, f32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "stride"),
    [
        (torch.float32, 2),
        (torch.bfloat16, 3),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (torch.float32, 3), (torch.bfloat16, 2), (torch.float64, 2), (torch.float64, 3),
            )
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pooled", [(2, 3, 37, 41), pytest.param((1, 2, 36, 48), marks=pytest.mark.slow)])
def test_gradients_of_pooling_and_resampling(
    dtype: torch.dtype, stride: int, pooled: tuple[int, ...]
) -> None:
    def pools(x: Tensor) -> Tensor:
        average = F.avg_pool2d(x, 3, stride, 1, count_include_pad=False)
        return average * 2 + F.max_pool2d(x, 3, stride, 1)

    def resamples(x: Tensor) -> Tensor:
        near = F.interpolate(x, scale_factor=float(stride))
        return near + F.interpolate(x, scale_factor=float(stride), mode="bilinear", align_corners=False)

    for function, shape in ((pools, pooled), (resamples, (2, 3, 9, 19))):
        x = torch.randn(shape).to(dtype).requires_grad_()
        other = x.detach().clone().requires_grad_()
        wanted = function(x)
        found = torch.compile(function, backend="polyfuse", options={"backends": ("cpp",)})(other)
        seed = torch.randn_like(wanted)
        wanted.backward(seed)
        found.backward(seed)
        rough = {"rtol": 0.02, "atol": 0.03} if dtype is torch.bfloat16 else {}
        torch.testing.assert_close(found, wanted, **rough)
        torch.testing.assert_close(other.grad, x.grad, **rough)


def coloured(
    rows: IndexLike, colours: int, dtype: DType, *, within: bool, stored_within: bool
) -> KernelBuilder:
    """Pictures above a limit for each colour; `within`: whether the colours of a pixel lie side by side."""
    k = KernelBuilder({"x0": rows, "x1": colours}, hints=() if isinstance(rows, int) else (64, colours))
    k.arg("a", dtype), k.arg("b", dtype), k.out("o", dtype)
    s = k.section()
    side, apart = k["x0"] * colours + k["x1"], k["x1"] * rows + k["x0"]
    larger = s.op("maximum", s.load("a", side if within else apart), s.load("b", k["x1"]))
    s.store("o", side if stored_within else apart, larger)
    if not isinstance(rows, int):
        k.size("s0")
    return k


@pytest.mark.quick(3)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [f32, DType.f64, DType.i8])
@pytest.mark.parametrize("colours", [2, 3, 4])
def test_a_short_axis_becomes_phases(colours: int, dtype: DType, isa: str) -> None:
    kernels = [
        (stored, coloured(37, colours, dtype, within=within, stored_within=stored).build())
        for within, stored in ((True, True), (True, False), (False, True))
    ]
    build_together((kernel for _, kernel in kernels), isa=isa)
    for stored_within, kernel in kernels:
        if isa == "":
            text = backend(isa).emit(kernel).text
            assert ("store_interleaved" in text) == stored_within and "strided" not in text
        inputs = [filled(37 * colours, dtype), filled(colours, dtype)]
        agrees(kernel, isa, inputs, filled(37 * colours, dtype))


def test_a_short_axis_beside_one_of_a_size_that_is_not_known() -> None:
    kernel = coloured(symbol("s0", 1), 3, f32, within=True, stored_within=True).build()
    for rows in (1, 5, 16, 17, 100):
        agrees(kernel, "", [filled(3 * rows, f32), filled(3, f32)], filled(3 * rows, f32), rows)


def test_a_short_axis_that_is_apart_in_memory_stays() -> None:
    kernel = coloured(64, 3, f32, within=False, stored_within=False).build()
    assert backend().emit(kernel).text.count("load<Vec>") == 1


def test_stores_with_loads_between_them_are_interleaved() -> None:
    k = KernelBuilder({"x0": 37})
    k.arg("a"), k.arg("b"), k.out("o")
    s = k.section()
    s.store("o", k["x0"] * 2, s.load("a", k["x0"]))
    s.store("o", k["x0"] * 2 + 1, s.load("b", k["x0"]))
    kernel = k.build()
    assert "store_interleaved" in backend().emit(kernel).text
    agrees(kernel, "", [filled(37, f32), filled(37, f32)], filled(74, f32))


def test_stores_with_a_read_of_their_buffer_between_them_are_not() -> None:
    k = KernelBuilder({"x0": 37})
    k.arg("a"), k.arg("o", kind="inout")
    s = k.section()
    s.store("o", k["x0"] * 2, s.load("a", k["x0"]))
    s.store("o", k["x0"] * 2 + 1, s.load("o", k["x0"] * 2))
    kernel = k.build()
    assert "store_interleaved" not in backend().emit(kernel).text
    agrees(kernel, "", [filled(37, f32)], filled(74, f32))
