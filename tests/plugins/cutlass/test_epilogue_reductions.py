"""Epilogues that combine groups of results: which there are, their texts, and what they compute."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from cutlass_kernels import GELU, RESIDUAL, SCALED, folded, generated_part, nvcc_options, product
from cutlass_on_host import run_on_host
from gemm_kernels import kernels_of
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.expr import const
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Scatter
from polyfuse.ir.types import DType
from polyfuse.kit import match
from polyfuse.reference.backend import InterpreterBackend
from polyfuse.symbolic import axis, evaluate
from polyfuse_cutlass.backend import CutlassBackend
from polyfuse_cutlass.build.artifact import read_unit
from polyfuse_cutlass.build.toolchain import build_in_worker
from polyfuse_cutlass.claims import claim_of
from polyfuse_cutlass.codegen.hopper import fault_of, result_of
from polyfuse_cutlass.codegen.row_statistics import COLUMNS, ROWS
from polyfuse_cutlass.problem import problem_of
from polyfuse_cutlass.space import configs, emit, neighbours
from polyfuse_cutlass.target import Target
from polyfuse_cutlass.tiling import Tiling
from requirements import needs_gxx, needs_nvcc

WIDE = Tiling(1, 64, stages=4)


CASES = {
    "row_maximum": (folded(product(512, 1024, 512, epilogue=GELU), "group_max", "columns"), Tiling(1, 256)),
    "column_sum": (
        folded(product(500, 1000, 512, epilogue=RESIDUAL), "group_sum", "rows"),
        Tiling(2, 128, pingpong=True, stages=5),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_text(name, golden):
    kernel, tiling = CASES[name]
    source = emit(kernel, tiling.config, Target())
    golden(f"cutlass/{name}.txt", generated_part(source))


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("name", CASES)
def test_compiles_without_spills(tmp_path, name):
    kernel, tiling = CASES[name]
    source = emit(kernel, tiling.config, Target())
    build_in_worker([source], tmp_path, nvcc_options())
    artifact = read_unit(tmp_path)[source.key]
    assert artifact.spilled == 0 and not artifact.serial


def compare(kernel: Kernel, rows: int, tiling: Tiling, folder) -> None:
    given: list[torch.Tensor | int] = []
    for arg in kernel.args:
        count = evaluate(arg.numel or 0, {"s0": rows})
        given.append(rows if arg.kind == "size" else torch.randn(count).to(arg.dtype.torch))
    bias = next((i for i, arg in enumerate(kernel.args) if arg.name == "bias"), None)
    if bias is not None:
        given[bias][3] = torch.nan
        given[bias][5] = torch.inf
    wanted = [value.clone() if isinstance(value, torch.Tensor) else value for value in given]
    run_on_host(kernel, given, tiling, folder)
    run_kernel(kernel, wanted)
    for arg, found, expected in zip(kernel.args, given, wanted, strict=True):
        if arg.kind == "out":
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2, equal_nan=True)


@pytest.mark.quick(1)
@needs_gxx
@pytest.mark.parametrize("epilogue", (GELU, SCALED, RESIDUAL), ids=("gelu", "scaled", "residual"))
@pytest.mark.parametrize("along", ("rows", "columns"))
@pytest.mark.parametrize("mode", ("group_sum", "group_min", "group_max"))
def test_groups_come_to_what_the_interpreter_says(tmp_path, mode, along, epilogue):
    kernel = folded(product(37, 72, 16, epilogue=epilogue), mode, along)
    assert (result_of(problem_of(kernel), WIDE) is None) == (epilogue == RESIDUAL)
    compare(kernel, 37, WIDE, tmp_path)


@pytest.mark.quick(1)
@needs_gxx
@pytest.mark.parametrize("along", ("rows", "columns"))
def test_sizes_and_types(tmp_path, along):
    for folder in ("symbol", "few"):
        (tmp_path / folder).mkdir()
    compare(folded(product(21, 40, 16, dynamic=True), "group_sum", along), 21, WIDE, tmp_path / "symbol")
    compare(folded(product(5, 7, 16, out="f32"), "group_max", along), 5, WIDE, tmp_path / "few")


@pytest.mark.quick(1)
@needs_gxx
@pytest.mark.parametrize("along", ("rows", "columns"))
def test_results_need_not_be_stored(tmp_path, along):
    kernel = folded(product(24, 72, 16, epilogue=GELU), "group_max", along)
    *loops, last = kernel.sections
    body = tuple(s for s in last.body if s.op != "store" or s.buffer == "out1")
    kernel = replace(
        kernel,
        args=tuple(a for a in kernel.args if a.name != "out0"),
        sections=(*loops, replace(last, body=body)),
    )
    compare(kernel, 24, WIDE, tmp_path)


@needs_gxx
def test_kernels_as_the_scheduler_makes_them(tmp_path, monkeypatch):
    def width(self, product, kind: str, along: str) -> int:
        return {"rows": ROWS, "columns": COLUMNS}[along]

    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = F.gelu(F.linear(x, w, b))
        return h, h.abs().amax(-1), h.float().sum((0, 1))

    monkeypatch.setattr(InterpreterBackend, "epilogue_reduction_width", width)
    given = (torch.randn(2, 20, 64), torch.randn(48, 64) * 0.1, torch.randn(48))
    (kernel,) = (k for k in kernels_of(layer, *(a.bfloat16() for a in given)) if match(k))
    kernel = replace(
        kernel, device="cuda", args=tuple(replace(a, aligned=a.kind != "size") for a in kernel.args)
    )
    compare(kernel, 40, Tiling.of(configs(kernel, Target())[0]), tmp_path)


TALL = folded(product(512, 1024, 512), "group_sum", "rows")


@pytest.mark.parametrize(
    ("tiling", "reason"),
    (
        (Tiling(1, 48), "do not fit its tiles"),
        (Tiling(1, 176), "do not fit its tiles"),
        (Tiling(1, 64, split=2), "do not fit its tiles"),
        (Tiling(1, 64, swap=True), "groups of results|neighbours in memory"),
    ),
)
def test_tilings_whose_tiles_hold_no_whole_groups(tiling, reason):
    with pytest.raises(UnsupportedError, match=reason):
        emit(TALL, tiling.config, Target())


def test_every_tiling_that_is_offered_is_possible():
    found = configs(TALL, Target())
    near = neighbours(TALL, found[0], Target())
    assert len(found) > 4 and near
    assert not any(fault_of(problem_of(TALL), Tiling.of(config)) for config in (*found, *near))


@pytest.mark.parametrize("width", (8, 24, 64))
def test_other_groups_are_refused(width):
    """Those of 64 rows too, though 16 of them meet at one index: others would be stored over them."""
    *loops, last = TALL.sections
    *body, store = last.body
    rows, columns = TALL.axes
    index = rows // width * 1024 + columns
    body.append(replace(store, buffer="out1", index=index, mode="group_sum"))
    kernel = replace(TALL, sections=(*loops, replace(last, body=tuple(body))))
    with pytest.raises(UnsupportedError, match="groups of results"):
        configs(kernel, Target())


def test_what_is_claimed():
    x = axis("i0", 64)
    value = const(1.0, DType.f32)
    assert claim_of(Scatter("n", (x,), (), "part", x // 16, (), value, "group_max"))
    assert not claim_of(Scatter("n", (x,), (), "part", x // 16, (), value, "max"))
    whole = const(1, DType.i64)
    assert "i64" in claim_of(Scatter("n", (x,), (), "part", x // 16, (), whole, "group_max")).reason


def test_how_many_are_combined(monkeypatch):
    backend = object.__new__(CutlassBackend)
    backend.settings = Settings.resolve(None, {})
    backend.target = Target()
    widths = [backend.epilogue_reduction_width(None, "max", along) for along in ("rows", "columns")]
    assert widths == [ROWS, COLUMNS]
