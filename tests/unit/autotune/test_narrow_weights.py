"""Matmuls that read a weight as it is stored, without timing: where that moves fewer bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse_cpp.backend import CppBackend
from polyfuse_cpp.isa import detect_isa, dot_instructions
from polyfuse_cpp.matmul.narrow import converted as conversion

WHY = "it reads an operand as it is stored"


@pytest.fixture(autouse=True)
def _as_without_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same limits on all machines."""
    monkeypatch.setattr(conversion, "_TILED_ROWS", conversion._PAIRED_ROWS)
    monkeypatch.setattr(conversion, "_UNTILED_ROWS", conversion._PAIRED_ROWS)


@pytest.fixture
def run(tmp_path: Any) -> Any:
    def compiled(function: Callable[..., Any], *args: torch.Tensor, **options: Any) -> GraphReport:
        forget_sessions()
        reset_reports()
        torch.compiler.reset()
        dynamic = options.pop("dynamic", False)
        chosen = {"backends": ["cpp"], "strict": True, "cache_dir": str(tmp_path), **options}
        result = torch.compile(function, backend="polyfuse", options=chosen, dynamic=dynamic)(*args)
        wanted = function(*(a.double() if a.dtype.is_floating_point and a.itemsize > 1 else a for a in args))
        limit = 1e-2 if result.itemsize == 2 else 1e-5
        error = (result.double() - wanted.double()).norm() / wanted.double().norm()
        assert error < limit
        return last_reports()[-1]

    return compiled


def is_narrow(report: GraphReport) -> bool:
    return any(d.kind == "choice" and d.reason == WHY for d in report.decisions)


def weights(columns: int = 48, depth: int = 70) -> torch.Tensor:
    return torch.randint(-128, 128, (columns, depth), dtype=torch.int8)


def converted(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x @ w.to(x.dtype).t()) * scale


def scaled(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, w.to(x.dtype) * scale[:, None])


def turned(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (w.to(x.dtype) @ x.t()).t() * scale


def biased(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, w.to(x.dtype), scale)


def shifted(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, (w - 3).to(x.dtype) * scale[:, None]).relu()


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [converted, scaled, turned, biased, shifted])
def test_one_row(run: Any, function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    report = run(function, torch.randn(1, 70, dtype=dtype), weights() >> 1, torch.rand(48, dtype=dtype) + 0.5)
    assert is_narrow(report) and report.kernels == 1 and not report.extern_calls


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [2, 9, 40])
@pytest.mark.parametrize("function", [converted, scaled, turned, shifted])
def test_some_rows(run: Any, function: Callable[..., torch.Tensor], rows: int, dtype: torch.dtype) -> None:
    w, scale = weights(37, 1100), torch.rand(37, dtype=dtype) + 0.5
    report = run(function, torch.randn(rows, 1100, dtype=dtype), w, scale)
    assert is_narrow(report) and report.kernels == 1 and not report.extern_calls


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("then", [torch.nn.functional.silu, lambda x: x.relu() * 2], ids=["silu", "relu"])
def test_layers_one_behind_the_other(
    run: Any, then: Callable[..., torch.Tensor], rows: int, dtype: torch.dtype
) -> None:
    def layers(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
        return (then((x @ w.to(x.dtype).t()) * scale + 1) @ w2.to(x.dtype).t()) * scale.sum()

    scale = (torch.rand(48) / 500).to(dtype)
    report = run(layers, torch.randn(rows, 70, dtype=dtype), weights(), scale, weights(64, 48))
    # what is between is computed once, not for each column, and no weight is copied
    assert sum(d.reason == WHY for d in report.decisions) == 2 and not report.extern_calls
    converted = [launch.ops for launch in report.launches if launch.ops == ("aten._to_copy.default",)]
    assert not converted


class Stored(torch.nn.Module):
    """A layer whose weight is stored in bytes, perhaps scaled in groups; `again`: it is read twice."""

    def __init__(self, grouped: bool, again: bool = False) -> None:
        super().__init__()
        self.register_buffer("weight", weights(48, 64))
        self.register_buffer("scale", torch.rand(48, 4 if grouped else 1) / 50)
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups = self.weight.view(48, self.scale.shape[1], -1)
        weight = ((groups - 3).to(x.dtype) * self.scale.to(x.dtype)[:, :, None]).view(48, 64)
        found = torch.nn.functional.linear(x, weight)
        return found + (x.sin() @ weight.t()) if self.again else found


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 5])
def test_frozen_weights_stay_narrow_for_few_rows(
    rows: int, again: bool, grouped: bool, dtype: torch.dtype
) -> None:
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    model, x = Stored(grouped, again), torch.randn(rows, 64, dtype=dtype)
    call = torch.compile(model, backend="polyfuse", options={"freezing": True, "strict": True})
    with torch.no_grad():
        for change in (0, 1):
            model.weight.add_(change)
            wanted = model(x.double())
            assert (call(x).double() - wanted).norm() < 2e-2 * wanted.norm()
    report = last_reports()[-1]
    frozen = dict(report.rewrites).get("freezing", 0)
    assert is_narrow(report) == (rows <= (4 if dtype is torch.float32 else 1) and not again)
    assert frozen == (0 if is_narrow(report) else 1)


def test_weights_are_frozen_where_the_backend_reads_them_wide() -> None:
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    model, x = Stored(False), torch.randn(1, 64)
    call = torch.compile(model, backend="polyfuse", options={"freezing": True, "backends": ["interpreter"]})
    with torch.no_grad():
        torch.testing.assert_close(call(x), model(x))
    assert dict(last_reports()[-1].rewrites)["freezing"] == 1
    forget_sessions()


@pytest.mark.skipif("PF_DOT_BF16" not in dot_instructions(), reason="this CPU multiplies no pairs of bf16")
@pytest.mark.slow
@pytest.mark.parametrize("tiles", [False, True])
def test_fewer_rows_where_the_library_has_tiles(
    run: Any, tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    found = ("PF_DOT_BF16", *(("PF_AMX",) if tiles else ()))
    monkeypatch.setattr(conversion, "dot_instructions", lambda: found)
    for rows, narrow in ((8, True), (9, not tiles), (96, not tiles), (97, False)):
        x, scale = torch.randn(rows, 70).bfloat16(), torch.rand(48).bfloat16()
        assert is_narrow(run(converted, x, weights(), scale)) == narrow
    for rows, narrow in ((32, True), (33, not tiles)):  # whose depth fills them
        x, scale = torch.randn(rows, 64).bfloat16(), torch.rand(48).bfloat16()
        assert is_narrow(run(converted, x, weights()[:, :64].contiguous(), scale)) == narrow


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "sse", "scalar"])
@pytest.mark.parametrize("rows", [1, 4, 9])
def test_other_instruction_sets(run: Any, rows: int, isa: str) -> None:
    x, scale = torch.randn(rows, 70), torch.rand(48) + 0.5
    report = run(scaled, x, weights(), scale, **{"cpp.isa": isa})
    assert is_narrow(report) == (isa != "scalar" or rows <= 4)


def nibbles(x: torch.Tensor, w: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Two numbers in a byte, scaled in groups."""
    columns, depth = w.shape[0], w.shape[1] * 2
    apart = torch.stack([(w & 15).to(x.dtype), (w >> 4).to(x.dtype)], -1)
    groups = apart.reshape(columns, zero.shape[1], -1)
    weight = (groups - zero[:, :, None]) * scale[:, :, None]
    return torch.nn.functional.linear(x, weight.reshape(columns, depth))


def halves(x: torch.Tensor, w: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The same with the upper halves of the bytes behind all lower ones."""
    weight = torch.cat([(w & 15).to(x.dtype), (w >> 4).to(x.dtype)], 1) - zero[:, :1]
    return torch.nn.functional.linear(x, weight * scale[:, :1])


def groups(x: torch.Tensor, w: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Bytes that are scaled in groups."""
    apart = w.to(x.dtype).reshape(w.shape[0], scale.shape[1], -1) - zero[:, :, None]
    x = torch.nn.functional.pad(x, (0, 0))[:, : w.shape[1]]
    return torch.nn.functional.linear(x, (apart * scale[:, :, None]).reshape(w.shape))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 9, 40])
@pytest.mark.parametrize("size", [8, 24, 64])
@pytest.mark.parametrize("function", [nibbles, groups])
def test_weights_scaled_in_groups(
    run: Any, function: Callable[..., torch.Tensor], size: int, rows: int, dtype: torch.dtype
) -> None:
    columns, depth = 37, 6 * size
    width = depth // 2 if function is nibbles else depth
    w = torch.randint(0, 256 if function is nibbles else 100, (columns, width), dtype=torch.uint8)
    zero = torch.randint(0, 16, (columns, 6)).to(dtype)
    scale = torch.rand(columns, 6, dtype=dtype) + 0.5
    report = run(function, torch.randn(rows, depth, dtype=dtype), w, zero, scale)
    assert is_narrow(report) and not report.extern_calls


def upper_first(x: torch.Tensor, w: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Two numbers in a byte, the first one in its upper half."""
    apart = torch.stack([(w >> 4) & 15, w & 15], -1).to(x.dtype)
    weight = (apart.reshape(w.shape[0], zero.shape[1], -1) - zero[:, :, None]) * scale[:, :, None]
    return torch.nn.functional.linear(x, weight.reshape(w.shape[0], -1))


def signed(x: torch.Tensor, w: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The same with a sign in the upper bit of each half."""
    wide = w.view(torch.int8)
    apart = torch.stack([(wide << 4) >> 4, wide >> 4], -1).to(x.dtype)
    weight = apart.reshape(w.shape[0], zero.shape[1], -1) * scale[:, :, None]
    return torch.nn.functional.linear(x, weight.reshape(w.shape[0], -1))


def mixed(x: torch.Tensor, w: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Each number takes five bits of its byte: no table has all of them."""
    apart = torch.stack([w & 31, w >> 3], -1).to(x.dtype)
    weight = apart.reshape(w.shape[0], zero.shape[1], -1) * scale[:, :, None]
    return torch.nn.functional.linear(x, weight.reshape(w.shape[0], -1))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [nibbles, upper_first, signed, mixed])
@pytest.mark.parametrize("rows", [1, 9])
def test_halves_of_bytes(
    run: Any, rows: int, function: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    """All bytes, in groups that are whole vectors and some bytes more."""
    w = torch.arange(256).to(torch.uint8).repeat(37, 1)[:, torch.randperm(256)][:, :240]
    zero, scale = torch.randint(0, 16, (37, 6)).to(dtype), torch.rand(37, 6, dtype=dtype) + 0.5
    report = run(function, torch.randn(rows, 480, dtype=dtype), w, zero, scale)
    assert is_narrow(report) and not report.extern_calls


@pytest.mark.skipif(detect_isa().name != "avx512", reason="sixteen numbers fit a vector of AVX-512 alone")
@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [nibbles, upper_first, signed])
@pytest.mark.parametrize("size", [32, 64, 128, 384])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_sums_of_groups_are_scaled(
    run: Any, rows: int, size: int, function: Callable[..., torch.Tensor], dtype: torch.dtype, tmp_path: Path
) -> None:
    """In place of their numbers, unless a row holds one that is not finite."""
    columns = 37 if rows < 3 else 517  # where few columns have several rows, the depth is cut
    w = torch.randint(0, 256, (columns, 10 * size), dtype=torch.uint8)
    zero, scale = torch.randint(0, 16, (columns, 20)).to(dtype), torch.rand(columns, 20).to(dtype) + 0.5
    x = torch.randn(rows, 20 * size, dtype=dtype)
    stages = tmp_path / "stages"
    assert is_narrow(run(function, x, w, zero, scale, dump=str(stages)))
    pairs = dtype is torch.bfloat16 and "PF_DOT_BF16" in dot_instructions()
    text = "".join(file.read_text(encoding="utf-8") for file in stages.rglob("*.c++"))
    steps = {"nibble_pairs", "nibble_ones"} & set(re.findall(r"nibble_products<.*?(\w+)>\(", text))
    assert steps == {"nibble_pairs" if pairs else "nibble_ones"}
    beside = {1: 8, 2: 4, 3: 2}[rows]
    assert f"nibble_products<{rows}, {beside}, " in text
    # the scales of the next block are asked for
    assert "__builtin_prefetch(in" in text
    call = torch.compile(function, backend="polyfuse", options={"backends": ["cpp"], "strict": True})
    for number in (float("inf"), float("-inf"), float("nan")):
        x[-1, 3] = number
        torch.testing.assert_close(
            call(x, w, zero, scale), function(x, w, zero, scale), rtol=3e-2, atol=size / 10, equal_nan=True
        )


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "sse", "scalar"])
@pytest.mark.parametrize("rows", [1, 9])
def test_groups_on_other_instruction_sets(run: Any, rows: int, isa: str) -> None:
    w = torch.randint(0, 256, (37, 48), dtype=torch.uint8)
    zero, scale = torch.randint(0, 16, (37, 3)).float(), torch.rand(37, 3) + 0.5
    report = run(nibbles, torch.randn(rows, 96), w, zero, scale, **{"cpp.isa": isa})
    assert is_narrow(report) == (isa != "scalar")


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_halves_of_bytes_one_behind_the_other(run: Any, dtype: torch.dtype, rows: int) -> None:
    w = torch.randint(0, 256, (37, 48), dtype=torch.uint8)
    zero, scale = torch.randint(0, 16, (37, 1)).to(dtype), torch.rand(37, 1, dtype=dtype) + 0.5
    run(halves, torch.randn(rows, 96, dtype=dtype), w, zero, scale)


@pytest.mark.quick(1)
@pytest.mark.parametrize("function", [converted, shifted, turned])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(3, 32, 16), (5, 4160, 40), (20, 2080, 33), (32, 64, 200), (2, 96, 48)]
)
def test_rows_in_matrix_registers(
    run: Any, function: Callable[..., torch.Tensor], rows: int, depth: int, columns: int
) -> None:
    """As many steps as fill them, in one pass and in several, rows and columns that fill no tile."""
    x, scale = torch.randn(rows, depth).bfloat16(), torch.rand(columns).bfloat16()
    assert is_narrow(run(function, x, weights(columns, depth), scale))


def test_any_number_of_rows_in_matrix_registers() -> None:
    w, scale = weights(40, 96), torch.rand(40).bfloat16()
    call = torch.compile(shifted, backend="polyfuse", options={"backends": ["cpp"], "strict": True})
    torch._dynamo.reset()
    for rows in (5, 17, 3, 32, 33, 2, 1, 40):
        x = torch.randn(rows, 96).bfloat16()
        torch._dynamo.mark_dynamic(x, 0) if rows > 1 else None
        error = (call(x, w, scale).double() - shifted(x.double(), w, scale.double())).norm()
        assert error < 1e-2 * shifted(x.double(), w, scale.double()).norm()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_other_bytes_in_matrix_registers(run: Any, kind: torch.dtype) -> None:
    x, scale = torch.randn(7, 128).bfloat16(), torch.rand(50).bfloat16()
    weight = torch.randint(0, 100, (50, 128)).to(kind)
    assert is_narrow(run(converted, x, weight, scale))


def test_a_weight_in_groups_that_is_used_twice_is_stored(run: Any) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        wide = (w.to(x.dtype).reshape(48, 2, -1) * scale[:, :, None]).reshape(48, 70)
        return torch.nn.functional.linear(x, wide) + wide.sum(1)

    assert not is_narrow(run(function, torch.randn(1, 70), weights(), torch.rand(48, 2) + 0.5))


@pytest.mark.slow
def test_a_weight_that_lies_across_the_depth(run: Any) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w.to(x.dtype)

    across = weights(70, 48)
    assert is_narrow(run(function, torch.randn(4, 70), across))
    assert not is_narrow(run(function, torch.randn(9, 70), across))


@pytest.mark.quick(1)
@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_that_are_none(run: Any, dtype: torch.dtype, kind: torch.dtype, rows: int) -> None:
    """Infinities and NaN of a weight are in the columns where eager mode has them, and nowhere else."""
    weight = torch.randn(48, 70).to(kind)
    weight[3, 5], weight[7, 1] = float("nan"), float("inf")
    x = torch.rand(rows, 70, dtype=dtype) + 0.5

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, w.to(x.dtype)).nan_to_num(nan=1e6, posinf=-1e6, neginf=-1e6)

    run(function, x, weight)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("depth", [17, 64, 100])
def test_bytes_that_are_only_converted(run: Any, kind: torch.dtype, dtype: torch.dtype, depth: int) -> None:
    """In registers, for few rows: exactly, whatever the numbers are."""
    w = torch.arange(37 * depth).reshape(37, depth).to(kind)
    for rows in (1, 2, 8, 9):
        x = torch.randint(-3, 4, (rows, depth)).to(dtype)
        assert is_narrow(run(converted, x, w, torch.full((37,), 2.0**-9, dtype=dtype)))


def test_eight_bit_floats(run: Any) -> None:
    weight = torch.randn(48, 70).to(torch.float8_e4m3fn)
    report = run(converted, torch.randn(1, 70), weight, torch.rand(48) + 0.5)
    assert is_narrow(report)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("rows", [1, 9])
def test_every_code_of_eight_bit_floats(run: Any, rows: int, kind: torch.dtype) -> None:
    """Each row of the weight has one number at a column of its own, and zeros."""
    weight = torch.zeros(256, 97).to(torch.uint8)
    weight[torch.arange(256), torch.arange(256) % 97] = torch.arange(256).to(torch.uint8)
    x = torch.ones(rows, 97, dtype=torch.bfloat16)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, w.to(x.dtype))

    assert is_narrow(run(function, x, torch.randn(256, 97).to(kind)))
    found = torch.compile(function, backend="polyfuse", options={"backends": ["cpp"]})(x, weight.view(kind))
    wanted = torch.arange(256).to(torch.uint8).view(kind).to(x.dtype).expand(rows, 256)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
def test_a_batch_of_rows(run: Any) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x, w.to(x.dtype))

    narrow = torch.randint(-9, 9, (3, 70, 48), dtype=torch.int8)
    assert is_narrow(run(function, torch.randn(3, 1, 70), narrow))


def test_what_the_library_does_as_well(run: Any) -> None:
    x, scale = torch.randn(1, 70), torch.rand(48) + 0.5
    assert not is_narrow(run(converted, x, weights().float(), scale))
    assert not is_narrow(run(converted, torch.randn(400, 70), weights(), scale))
    assert not is_narrow(run(converted, x, weights(), scale, gemm="library"))
    assert not is_narrow(run(converted, x, weights(), scale, numerics="eager"))


@pytest.mark.slow
def test_a_converted_weight_that_is_used_twice_is_stored(run: Any) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        wide = w.to(x.dtype)
        return torch.nn.functional.linear(x, wide) + wide.sum(1)

    assert not is_narrow(run(function, torch.randn(1, 70), weights()))


@pytest.mark.slow
def test_rows_that_are_unknown(run: Any) -> None:
    assert not is_narrow(run(converted, torch.randn(5, 70), weights(), torch.rand(48) + 0.5, dynamic=True))


@pytest.mark.slow
@pytest.mark.parametrize("rows, narrow", [(5, True), (20, False)])
def test_the_most_rows_of_a_class_count(
    run: Any, monkeypatch: pytest.MonkeyPatch, rows: int, narrow: bool
) -> None:
    """Rows from 2 to 15 are a class of sizes, further ones others."""
    monkeypatch.setattr(CppBackend, "narrow_weight_rows", lambda self, matmul: (16, 1))
    w, scale = weights(), torch.rand(48) + 0.5
    x = torch.randn(rows, 70)
    torch._dynamo.mark_dynamic(x, 0)
    assert is_narrow(run(converted, x, w, scale, dynamic=None)) == narrow
    function = torch.compile(converted, backend="polyfuse", options={"backends": ["cpp"]}, dynamic=None)
    for count in (5, 2, 15, 20):
        x = torch.randn(count, 70)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(function(x, w, scale), converted(x, w, scale), rtol=1e-4, atol=1e-3)
