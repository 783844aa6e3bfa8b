"""Generated epilogues against the reference interpreter, run on the CPU."""

from __future__ import annotations

import pytest
import torch

from cutlass_kernels import GELU, PLAIN, RESIDUAL, SCALED, product
from cutlass_on_host import run_on_host
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.ir.types import DType
from polyfuse.symbolic import evaluate
from polyfuse_cutlass.tiling import Tiling
from requirements import needs_gxx

pytestmark = needs_gxx

WIDE = Tiling(1, 64, stages=4)
SWAPPED = Tiling(1, 16, stages=4, swap=True)


def operands(kernel: Kernel, rows: int) -> list[torch.Tensor | int]:
    found: list[torch.Tensor | int] = []
    for arg in kernel.args:
        if arg.kind == "size":
            found.append(rows)
            continue
        count = evaluate(arg.numel or 0, {"s0": rows})
        if arg.dtype.is_integer:
            found.append(torch.randint(-20, 20, (count,), dtype=arg.dtype.torch))
        else:
            found.append(torch.randn(count).to(arg.dtype.torch))
    return found


def compare(kernel: Kernel, rows: int, tiling: Tiling, folder, tolerance: float = 2e-2) -> None:
    given = operands(kernel, rows)
    wanted = [value.clone() if isinstance(value, torch.Tensor) else value for value in given]
    run_on_host(kernel, given, tiling, folder)
    run_kernel(kernel, wanted)
    for arg, found, expected in zip(kernel.args, given, wanted, strict=True):
        if arg.kind == "out":
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.quick(2)
@pytest.mark.parametrize("tiling", (WIDE, SWAPPED), ids=("wide", "swapped"))
@pytest.mark.parametrize(
    "epilogue", (PLAIN, GELU, RESIDUAL, SCALED), ids=("plain", "gelu", "residual", "scaled")
)
@pytest.mark.parametrize(("rows", "columns"), ((24, 40), (9, 12), (5, 7)))
def test_layers(tmp_path, tiling, epilogue, rows, columns):
    compare(product(rows, columns, 16, epilogue=epilogue), rows, tiling, tmp_path)


@pytest.mark.quick(1)
@pytest.mark.parametrize("shared", (False, True))
@pytest.mark.parametrize("epilogue", (RESIDUAL, SCALED), ids=("residual", "scaled"))
def test_batches(tmp_path, shared, epilogue):
    compare(product(6, 16, 32, batch=3, shared=shared, epilogue=epilogue), 6, WIDE, tmp_path)


def test_rows_of_results_may_lie_apart(tmp_path):
    compare(product(6, 16, 32, batch=3, epilogue=SCALED, pitch=24), 6, WIDE, tmp_path)


def test_results_may_be_rounded_before_they_are_rounded(tmp_path):
    lines = ("narrow = cast f16 ({sum})", "value = cast f32 (narrow)")
    kernel = product(8, 16, 32, epilogue=lines)
    given = operands(kernel, 8)
    given[0].view(-1)[:32] *= 1e6
    wanted = [value.clone() for value in given]
    run_on_host(kernel, given, WIDE, tmp_path)
    run_kernel(kernel, wanted)
    assert wanted[-1].isinf().any() and torch.equal(given[-1].isinf(), wanted[-1].isinf())


def test_rows_may_be_a_symbol(tmp_path):
    compare(product(11, 24, 16, dynamic=True, epilogue=RESIDUAL), 11, WIDE, tmp_path)


def test_results_may_run_along_the_rows(tmp_path):
    compare(product(16, 24, 16, index="16*i1 + i0", epilogue=RESIDUAL), 16, WIDE, tmp_path)


@pytest.mark.quick(2)
@pytest.mark.parametrize(("dtype", "out"), (("f16", "f16"), ("bf16", "f32"), ("f32", "f32"), ("i8", "bf16")))
def test_types(tmp_path, dtype, out):
    compare(product(8, 16, 32, dtype=dtype, out=out, epilogue=GELU), 8, WIDE, tmp_path, 5e-2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("out", ("f8e4m3", "f8e5m2"))
def test_results_of_eight_bits(tmp_path, out):
    lines = ("scale = const f32 9.0", "value = mul f32 ({sum}, scale)")
    kernel = product(8, 16, 32, out=out, epilogue=lines)
    given = operands(kernel, 8)
    given[0].view(-1)[:40] *= 300.0
    wanted = [value.clone() for value in given]
    run_on_host(kernel, given, WIDE, tmp_path)
    run_kernel(kernel, wanted)
    assert torch.equal(given[-1].float().nan_to_num(1e6), wanted[-1].float().nan_to_num(1e6))


def test_indices_masks_and_tables(tmp_path):
    lines = (
        "p = index i64 <i0 + 2*i1>",
        "limit = const i64 20",
        "inside = lt i64 (p, limit)",
        "zero = const bf16 0.0",
        "b0 = load bf16 bias[i1] if inside else zero",
        "b1 = cast f32 (b0)",
        "eight = const i64 8",
        "q = remainder i64 (p, eight)",
        "b2 = load bf16 bias[@0{{24}}] @(q)",
        "b3 = cast f32 (b2)",
        "b4 = add f32 (b1, b3)",
        "b5 = add f32 (b4, {sum})",
        "value = where f32 (inside, b5, b1)",
    )
    compare(product(10, 24, 16, epilogue=lines), 10, WIDE, tmp_path)


FLOATS = sorted(
    name
    for name, row in SCALAR_OPS.items()
    # the CPU's library has no inverse of erf
    if DType.f32 in row.types and name not in ("where", "erfinv")
)


def test_every_operation_on_f32(tmp_path):
    lines = [
        "a = const f32 0.75",
        "value0 = mul f32 ({sum}, a)",
        "other = load bf16 bias[i1]",
        "o = cast f32 (other)",
    ]
    total = "value0"
    zero, one = "zero = const f32 0.0", "one = const f32 1.0"
    lines += [zero, one, "large = const f32 1000.0", "low = const f32 -1000.0"]
    for number, name in enumerate(FLOATS):
        row = SCALAR_OPS[name]
        given = ("value0", "o", "a")[: row.arity]
        if row.result == "bool":
            lines += [f"x{number} = {name} f32 ({', '.join(given)})".replace(f"{name} f32", f"{name} bool")]
            lines.append(f"y{number} = where f32 (x{number}, one, zero)")
        else:
            lines.append(f"y{number} = {name} f32 ({', '.join(given)})")
        # what is not finite, or large, would hide the others
        lines += [f"t{number} = fmin f32 (y{number}, large)", f"u{number} = fmax f32 (t{number}, low)"]
        lines.append(f"w{number} = isnan bool (u{number})")
        lines.append(f"z{number} = where f32 (w{number}, a, u{number})")
        lines.append(f"s{number} = add f32 ({total}, z{number})")
        total = f"s{number}"
    lines.append(f"value = mul f32 ({total}, one)")
    compare(product(16, 24, 16, out="bf16", epilogue=tuple(lines)), 16, WIDE, tmp_path, 3e-2)
