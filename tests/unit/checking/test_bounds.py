"""Honest kernels are within their bounds, whatever the order of their sums; small defects are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
import torch

from polyfuse.checking.launch import CheckResult, check_launch
from polyfuse.checking.operands import layout_of
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.text.parse import parse_kernel

SUM = """kernel k on cpu {
  numerics fast
  axes p0{4} ~ 4
  raxes r0{N} ~ N
  in in0: DT[4*N]
  out out0: DT[4]
  loop {
    v0 = load DT in0[N*p0 + r0]
LOADED
    v2 = reduce f32 sum (v1)
  }
  once {
ROUNDED
    store DT set out0[p0] = v3
  }
}
"""


def sums(count: int, dtype: str = "f32"):
    narrow = dtype != "f32"
    loaded = "    v1 = cast f32 (v0)" if narrow else "    v1 = neg f32 (v0)"
    rounded = f"    v3 = cast {dtype} (v2)" if narrow else "    v3 = neg f32 (v2)"
    text = SUM.replace("LOADED", loaded).replace("ROUNDED", rounded)
    return parse_kernel(text.replace("4*N", str(4 * count)).replace("N", str(count)).replace("DT", dtype))


def checked(kernel: Any, launch: Callable[..., Any], operands: Sequence[Any]) -> CheckResult:
    layout = layout_of(kernel, operands)
    assert layout is not None
    return check_launch(kernel, launch, operands, layout)


def drawn(kind: str, count: int) -> torch.Tensor:
    torch.manual_seed(0)
    if kind == "equal":
        return torch.full((4, count), 0.1)
    if kind == "cancelling":
        x = torch.randn(4, count) * 1e4
        return torch.cat([x[:, : count // 2], -x[:, : count // 2]], 1)
    return torch.randn(4, count)


@pytest.mark.parametrize("count", [2, 64, 1000, 20000])
@pytest.mark.parametrize("kind", ["normal", "equal", "cancelling"])
def test_sums_in_any_order_are_honest(kind, count):
    x = drawn(kind, count)

    def in_lanes(a: torch.Tensor, out: torch.Tensor) -> None:
        rows = a.view(4, count).numpy()
        lanes = 8 if count % 8 == 0 else 1
        parts = rows.reshape(4, -1, lanes)
        total = numpy.add.accumulate(parts, axis=1, dtype=numpy.float32)[:, -1]
        out.copy_(torch.from_numpy(numpy.add.accumulate(total, axis=1, dtype=numpy.float32)[:, -1].copy()))

    found = checked(sums(count), in_lanes, (x, torch.empty(4)))
    assert not found.problem and not found.unknown and found.elements == 4


@pytest.mark.parametrize("count", [64, 1000, 4000])
def test_a_term_left_out_is_seen(count):
    x = drawn("normal", count).abs() + 0.5

    def short(a: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(a.view(4, count)[:, :-1].double().sum(1))

    assert checked(sums(count), short, (x, torch.empty(4))).problem


def test_an_accumulator_of_16_bits_is_seen():
    x = drawn("normal", 256).bfloat16()

    def narrow(a: torch.Tensor, out: torch.Tensor) -> None:
        total = torch.zeros(4, dtype=torch.bfloat16)
        for column in a.view(4, 256).unbind(1):
            total = total + column
        out.copy_(total)

    found = checked(sums(256, "bf16"), narrow, (x, torch.empty(4, dtype=torch.bfloat16)))
    assert found.worst is not None and found.worst.name == "out0"


ELEMENTS = """kernel k on cpu {
  numerics NUMERICS
  axes p0{8} ~ 8
  in in0: f32[8]
  in in1: f32[8]
  out out0: f32[8]
  once {
    v0 = load f32 in0[p0]
    v1 = load f32 in1[p0]
BODY
    store f32 set out0[p0] = v9
  }
}
"""


def elements(body: str, numerics: str = "fast"):
    lines = "\n".join(f"    {line}" for line in body.split("; "))
    return parse_kernel(ELEMENTS.replace("NUMERICS", numerics).replace("BODY", lines))


A = torch.tensor([1.0, -2.5, float("nan"), float("inf"), -float("inf"), 0.0, 1e-30, 3e38])
B = torch.tensor([3.0, 1e-3, 1.0, 2.0, float("inf"), -0.0, 1e30, 3e38])


def test_a_contraction_is_honest_where_it_is_allowed():
    body = "v2 = mul f32 (v0, v1); v9 = add f32 (v2, v0)"
    torch.manual_seed(1)
    a, b = torch.randn(2, 8)

    def contracted(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_((x.double() * y.double() + x.double()).float())

    assert not checked(elements(body), contracted, (a, b, torch.empty(8))).problem
    assert checked(elements(body, "eager"), contracted, (a, b, torch.empty(8))).problem


@pytest.mark.parametrize("body", ["v9 = maximum f32 (v0, v1)", "v9 = mul f32 (v0, v1)", "v9 = exp f32 (v0)"])
@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_nan_and_infinity_are_where_they_belong(body, numerics):
    kernel = elements(body, numerics)

    def right(*operands: Any) -> None:
        run_kernel(kernel, operands)

    def finite(*operands: Any) -> None:
        run_kernel(kernel, operands)
        operands[2].nan_to_num_()

    assert not checked(kernel, right, (A, B, torch.empty(8))).problem
    assert checked(kernel, finite, (A, B, torch.empty(8))).problem


NARROWED = ELEMENTS.replace("out0: f32", "out0: bf16").replace(
    "    store f32 set out0[p0] = v9", "    v10 = cast bf16 (v9)\n    store bf16 set out0[p0] = v10"
)
TINY = torch.finfo(torch.float32).tiny


def flushed(x: torch.Tensor) -> torch.Tensor:
    """Numbers below the normal ones as a device drops them that has none."""
    return torch.where(x.abs() < TINY, x * 0, x)


@pytest.mark.parametrize("defect", ["", "sign of a zero", "NaN", "infinity"])
def test_a_zero_that_is_none_but_for_rounding_may_have_either_sign(defect):
    """A gradient of a cross entropy: probabilities below the normal numbers, and zeros that are exact."""
    body = "v2 = exp f32 (v0); v3 = mul f32 (v2, v1); v4 = const f32 0; v9 = sub f32 (v4, v3)"
    kernel = parse_kernel(NARROWED.replace("NUMERICS", "fast").replace("BODY", body.replace("; ", "\n")))
    a = torch.tensor([-92.0, -95.0, -92.0, -120.0, 1.0, 1.0, 1.0, 1.0])
    b = torch.tensor([0.01, -0.01, 0.5, 0.3, 0.0, float("nan"), float("inf"), 2.0])
    exact = torch.empty(8, dtype=torch.bfloat16)
    run_kernel(kernel, (a, b, exact))
    assert exact[0] == 0 and exact[0].signbit()

    def without_subnormal(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(0 - flushed(flushed(x.exp()) * y))
        assert not out[0].signbit()
        match defect:
            case "sign of a zero":
                out[4] = -0.0
            case "NaN":
                out[5] = 0.0
            case "infinity":
                out[6] = 0.0

    found = checked(kernel, without_subnormal, (a, b, torch.empty(8, dtype=torch.bfloat16)))
    assert bool(found.problem) == bool(defect)


@pytest.mark.parametrize("body", ["v9 = mul f32 (v0, v1)", "v9 = sub f32 (v0, v0)", "v9 = sqrt f32 (v0)"])
@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_an_exact_zero_has_its_sign(body, numerics):
    kernel = elements(body, numerics)
    a = torch.tensor([0.0, -0.0, 0.0, -0.0, 0.0, -0.0, 0.0, -0.0])
    b = torch.tensor([0.0, 0.0, -3.0, -3.0, 1e-30, 1e-30, -1e30, -1e30])

    def turned(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        run_kernel(kernel, (x, y, out))
        out[3] = -out[3]

    assert checked(kernel, turned, (a, b, torch.empty(8))).problem


def test_a_choice_that_may_fall_either_way_is_not_judged():
    """Where a comparison's operands are as near as their roundings, either branch is right."""
    body = "v2 = mul f32 (v0, v1); v3 = const f32 0.3; v4 = lt bool (v2, v3); v9 = where f32 (v4, v0, v1)"
    kernel = elements(body)
    a = torch.tensor([0.1, 0.1, 0.5, 2.0, 0.1, 0.1, 0.1, 0.1])
    b = torch.tensor([3.0, 3.1, 0.5, 2.0, 2.9, 1.0, 1.0, 1.0])

    def other(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        run_kernel(kernel, (x, y, out))
        out[0] = y[0] if out[0] == x[0] else x[0]

    def wrong(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        run_kernel(kernel, (x, y, out))
        out[2] = y[2] + 1

    assert not checked(kernel, other, (a, b, torch.empty(8))).problem
    assert checked(kernel, wrong, (a, b, torch.empty(8))).problem


def test_operands_that_share_memory_do_so_in_the_copies():
    kernel = elements("v9 = add f32 (v0, v1)")
    memory = torch.arange(16.0)
    operands = (memory[:8], memory[4:12], memory[:8])
    layout = layout_of(kernel, operands)
    assert layout is not None and layout.aliases == "0+0,1+16,2+0"
    seen: list[tuple[Any, ...]] = []

    def launch(*copies: Any) -> None:
        seen.append(copies)
        run_kernel(kernel, copies)

    found = check_launch(kernel, launch, operands, layout)
    assert not found.problem
    a, b, out = seen[0]
    assert a.data_ptr() == out.data_ptr() and b.data_ptr() == a.data_ptr() + 16
    assert a.data_ptr() != memory.data_ptr() and torch.equal(memory, torch.arange(16.0))


def test_what_lies_beside_a_buffer_is_watched():
    kernel = elements("v9 = add f32 (v0, v1)")

    def beyond(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        run_kernel(kernel, (x, y, out))
        out.as_strided((1,), (1,), out.storage_offset() + 8).fill_(1.0)

    assert "beside" in checked(kernel, beyond, (A, B, torch.empty(8))).problem


SCATTER = """kernel k on cpu {
  numerics fast
  axes p0{6} ~ 6
  in in0: i64[6]
  in in1: f32[6]
  inout out0: f32[4]
  once {
    v0 = load i64 in0[p0]
    v1 = load f32 in1[p0]
    store f32 MODE out0[@0{4}] @(v0) = v1
  }
}
"""


@pytest.mark.parametrize("mode", ["add", "set", "max"])
def test_several_stores_to_one_element(mode):
    """Sums may be made in any order, and of several stores any may be the last; a maximum is exact."""
    kernel = parse_kernel(SCATTER.replace("MODE", mode))
    at = torch.tensor([0, 1, 1, 1, 3, 3])
    value = torch.tensor([1.0, 2e7, 1.25, -2e7, 7.0, 8.0])

    def launch(*operands: Any) -> None:
        run_kernel(kernel, (operands[0].flip(0).contiguous(), operands[1].flip(0).contiguous(), operands[2]))

    def lost(*operands: Any) -> None:
        run_kernel(kernel, operands)
        operands[2][0] = -1

    start = torch.zeros(4)
    assert not checked(kernel, launch, (at, value, start)).problem
    assert checked(kernel, lost, (at, value, start)).problem


COARSE = """kernel k on cpu {
  numerics NUMERICS
  axes p0{2000} ~ 2000
  in in0: bf16[2000]
  out out0: OUT[2000]
  once {
    v0 = load bf16 in0[p0]
    v1 = cast f32 (v0)
    v2 = erf f32 (v1)
    v3 = add f32 (v2, v1)
ROUNDED
  }
}
"""


@pytest.mark.parametrize("op", ["exp", "sigmoid", "tanh"])
@pytest.mark.parametrize(
    "out, error, honest", [("bf16", 3e-6, True), ("bf16", 1e-2, False), ("f32", 3e-6, False)]
)
def test_exponentials_may_be_short_where_16_bits_are_stored(op, out, error, honest):
    narrow = "    v4 = cast bf16 (v3)\n    store bf16 set out0[p0] = v4"
    rounded = narrow if out == "bf16" else "    store f32 set out0[p0] = v3"
    text = COARSE.replace("NUMERICS", "fast").replace("OUT", out).replace("ROUNDED", rounded)
    text = text.replace("v2 = erf", f"v2 = {op}").replace("v3 = add f32 (v2, v1)", "v3 = neg f32 (v2)")
    kernel = parse_kernel(text)
    x = torch.linspace(-6, 6, 2000).bfloat16()

    def short(a: torch.Tensor, found: torch.Tensor) -> None:
        found.copy_((-getattr(torch, op)(a.double()) * (1 + error)).float())

    target = torch.empty(2000, dtype=torch.bfloat16 if out == "bf16" else torch.float32)
    assert (not checked(kernel, short, (x, target)).problem) == honest


@pytest.mark.parametrize(
    "out, numerics, error, honest",
    [
        ("bf16", "fast", 2**-13, True),
        ("bf16", "fast", 2**-9, False),
        ("bf16", "eager", 2**-13, False),
        ("f32", "fast", 2**-13, False),
    ],
)
def test_erf_may_be_coarse_where_only_bf16_is_made_of_it(out, numerics, error, honest):
    narrow = "    v4 = cast bf16 (v3)\n    store bf16 set out0[p0] = v4"
    rounded = narrow if out == "bf16" else "    store f32 set out0[p0] = v3"
    kernel = parse_kernel(
        COARSE.replace("NUMERICS", numerics).replace("OUT", out).replace("ROUNDED", rounded)
    )
    x = torch.linspace(-6, 6, 2000).bfloat16()

    def coarse(a: torch.Tensor, found: torch.Tensor) -> None:
        exact = torch.erf(a.double())
        found.copy_((exact * (1 - error * (1 - exact.abs())) + a.double()).float())

    target = torch.empty(2000, dtype=torch.bfloat16 if out == "bf16" else torch.float32)
    assert (not checked(kernel, coarse, (x, target)).problem) == honest
