"""Half floats that are only moved are moved as integers, bit by bit; what is computed with stays a float."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cpp_kernels import KernelBuilder, backend, compiled
from polyfuse.ir.types import DType

ISAS = ("", "avx2", "sse", "scalar")
HALVES = (DType.bf16, DType.f16)


def any_bits(*shape: int, dtype: DType) -> Tensor:
    """All kinds of numbers, NaN with its payload and both zeros included."""
    return torch.randint(-(1 << 15), 1 << 15, shape, dtype=torch.int16).view(dtype.torch)


@pytest.mark.quick(1)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", HALVES)
def test_copies_keep_every_bit(dtype: DType, isa: str) -> None:
    a = any_bits(37, 53, dtype=dtype)
    ways: list[tuple[Callable[[KernelBuilder], object], Tensor]] = [
        (lambda k: k["x0"] * 53 + k["x1"], a),
        (lambda k: k["x1"] * 37 + k["x0"], a.t()),
    ]
    for index, want in ways:
        k = KernelBuilder({"x0": 37, "x1": 53})
        k.arg("a", dtype), k.out("o", dtype)
        s = k.section()
        s.store("o", index(k), s.load("a", k["x0"] * 53 + k["x1"]))
        assert dtype.value not in backend().emit(k.build()).text
        out = torch.zeros(37 * 53, dtype=dtype.torch)
        compiled(k.build(), isa)(a, out)
        assert torch.equal(out.view(torch.int16), want.contiguous().view(torch.int16).flatten())


@pytest.mark.parametrize("dtype", HALVES)
def test_a_margin_is_made_of_bits_too(dtype: DType) -> None:
    k = KernelBuilder({"x0": 100})
    k.arg("a", dtype), k.out("o", dtype)
    s = k.section()
    inside = s.op("lt", s.index(k["x0"]), s.const(60, DType.i64))
    s.store("o", k["x0"], s.load("a", k["x0"], mask=inside, other=s.const(-1.5, dtype)))
    assert dtype.value not in backend().emit(k.build()).text
    a, out = any_bits(60, dtype=dtype), torch.zeros(100, dtype=dtype.torch)
    compiled(k.build())(a, out)
    assert torch.equal(out[:60].view(torch.int16), a.view(torch.int16)) and (out[60:] == -1.5).all()


def test_what_is_computed_with_stays_a_float() -> None:
    k = KernelBuilder({"x0": 40})
    k.arg("in0", DType.bf16), k.arg("in1", DType.bf16)
    k.out("out0", DType.bf16), k.out("out1", DType.bf16), k.out("out2", DType.bf16)
    s = k.section()
    a, b = s.load("in0", k["x0"]), s.load("in1", k["x0"])
    s.store("out0", k["x0"], a)
    s.store("out1", k["x0"], s.cast(s.op("neg", s.cast(a, DType.f32)), DType.bf16))
    s.store("out2", k["x0"], b)
    head = backend().emit(k.build()).text.split("\n")[1]
    assert "const bf16* in0, const i16* in1, bf16* out0, bf16* out1, i16* out2" in head
    first, second = torch.randn(40).bfloat16(), torch.randn(40).bfloat16()
    outs = [torch.zeros(40).bfloat16() for _ in range(3)]
    compiled(k.build())(first, second, *outs)
    assert torch.equal(outs[0], first) and torch.equal(outs[1], -first) and torch.equal(outs[2], second)
