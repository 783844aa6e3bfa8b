"""Matmuls of groups of rows on a GPU (`torch._grouped_mm`), against products one by one."""

from __future__ import annotations

import itertools

import pytest
import torch

from polyfuse.compiler.reports.report import last_reports
from polyfuse.ir.nodes import Buffer, TemplateCall, View
from polyfuse.ir.types import DType
from polyfuse.plugin import CallSite
from polyfuse_cuda.toolchain import find_compiler
from polyfuse_cutlass.build.toolchain import build_in_worker
from polyfuse_cutlass.codegen.grouped import applies, grouped
from polyfuse_cutlass.codegen.grouped import configs as grouped_configs
from polyfuse_cutlass.launch.launcher import load_unit
from requirements import needs_nvcc

pytestmark = [
    pytest.mark.gpu,
    needs_nvcc,
]


@pytest.mark.parametrize("ends", ([100, 100, 356, 700], [0, 0, 0, 1], [256, 512, 600, 601]), ids=str)
@pytest.mark.parametrize("along", (False, True))
@pytest.mark.usefixtures("hopper")
def test_groups_of_rows(tmp_path, ends, along):
    """Each tile, against products one by one."""
    rows, depth, columns = ends[-1], 264, 328
    left = torch.randn(rows, depth, device="cuda").bfloat16()
    shape = (len(ends), depth, columns) if along else (len(ends), columns, depth)
    right = torch.randn(shape, device="cuda").bfloat16()
    matrices = right if along else right.mT
    ended = torch.tensor(ends, dtype=torch.int32, device="cuda")
    wanted = torch.cat(
        [left[a:b].float() @ matrices[i].float() for i, (a, b) in enumerate(itertools.pairwise([0, *ends]))]
    )
    plain = {"device": "cuda:0", "dtype": DType.bf16, "torch_dtype": "bfloat16", "kind": "input"}
    buffers = {
        "a": Buffer("a", size=(rows, depth), stride=(depth, 1), **plain),
        "b": Buffer("b", size=shape, stride=right.stride(), **plain),
        "e": Buffer("e", DType.i32, "cuda:0", (len(ends),), (1,), "int32", "input"),
        "o": Buffer("o", size=(rows, columns), stride=(columns, 1), **{**plain, "kind": "temp"}),
    }
    args = (
        buffers["a"].view(),
        View("b", (len(ends), depth, columns), matrices.stride()),
        buffers["e"].view(),
    )
    site = CallSite(TemplateCall("c", "aten._grouped_mm.default", args, (), ("o",)), buffers)
    assert applies(site)
    for number, config in enumerate(grouped_configs(site)):
        made = grouped(site, config)
        folder = tmp_path / str(number)
        folder.mkdir()
        compiler = find_compiler("nvcc")
        options = {"compiler": "nvcc", "path": compiler.path, "version": compiler.version, "arch": "sm_90a"}
        build_in_worker([made.source], folder, options)
        out = torch.full((rows, columns), torch.nan, device="cuda").bfloat16()
        load_unit(folder)[made.source.key](left, right, ended, out, *made.operands[4:])
        torch.testing.assert_close(out.float(), wanted, rtol=2e-2, atol=0.3)


@pytest.mark.usefixtures("hopper")
def test_groups_of_rows_in_trials():
    """Whoever wins, the result is that of eager mode, and the kernel took part."""
    rows = torch.randn(512, 256, device="cuda").bfloat16()
    matrices = torch.randn(4, 256, 512, device="cuda").bfloat16()
    ends = torch.tensor([128, 128, 400, 512], dtype=torch.int32, device="cuda")

    def run(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(rows, matrices, offs=ends).relu()

    found = torch.compile(run, backend="polyfuse", options={"gemm": "fastest"})(rows, matrices, ends)
    torch.testing.assert_close(found, run(rows, matrices, ends), rtol=2e-2, atol=0.3)
    decided = {d.second: (d.kind, d.reason) for d in last_reports()[-1].decisions}
    assert decided.get("cutlass:grouped", ("",))[0] != "declined", decided
    assert any(
        "cutlass:grouped" in text for d in last_reports()[-1].decisions for text in (d.second, d.reason)
    )
