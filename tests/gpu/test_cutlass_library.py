"""Products of CUTLASS's own templates on a GPU, against the reference interpreter."""

from __future__ import annotations

import itertools

import pytest
import torch

from cutlass_kernels import GELU, RESIDUAL, product
from polyfuse.base.errors import BackendUnavailableError
from polyfuse.compiler.reports.report import last_reports
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.nodes import Buffer, TemplateCall, View
from polyfuse.ir.types import DType
from polyfuse.plugin import CallSite, Config
from polyfuse.symbolic import evaluate
from polyfuse_cuda.toolchain import find_compiler
from polyfuse_cutlass.build.headers import find_headers
from polyfuse_cutlass.build.toolchain import build_in_worker
from polyfuse_cutlass.codegen.grouped import applies, grouped
from polyfuse_cutlass.codegen.grouped import configs as grouped_configs
from polyfuse_cutlass.launch.launcher import load_unit
from polyfuse_cutlass.target import Target
from polyfuse_cutlass.templates.ampere import AmpereTile
from polyfuse_cutlass.templates.candidates import library_source
from polyfuse_cutlass.templates.collective import Collective
from requirements import CUTLASS, needs_nvcc

pytestmark = [
    pytest.mark.gpu,
    needs_nvcc,
]

ROWS = 130
SECONDS = 300
"""A template of the library takes 40 seconds of a CPU, whose cores compile others at the same time."""
HOPPER = {
    "cooperative": (product(136, 264, 200, epilogue=GELU), Collective()),
    "tall, columns": (
        product(300, 72, 136, epilogue=RESIDUAL, right="columns"),
        Collective(256, 128, 1, 2),
    ),
    "ping-pong, batch": (
        product(72, 136, 64, batch=5, left="rows"),
        Collective(64, 128, 2, 1, "ping-pong"),
    ),
    "few rows": (product(13, 1000, 520, epilogue=GELU), Collective(64, 32, 1, 1, "ping-pong", True)),
    "stream-K": (product(300, 1000, 4096, epilogue=RESIDUAL), Collective(128, 128, 2, 1, "stream-K")),
    "dynamic": (product(300, 136, 64, dynamic=True), Collective(128, 128, 2, 1, "ping-pong")),
    "i8": (product(136, 136, 144, dtype="i8", out="f32"), Collective(128, 128, 1, 2)),
    "f8e4m3": (
        product(136, 264, 528, dtype="f8e4m3", epilogue=RESIDUAL),
        Collective(64, 128, 2, 1, "ping-pong"),
    ),
    "tf32": (product(136, 136, 144, dtype="f32", out="f32", epilogue=GELU), Collective(128, 128, 2, 1)),
}
AMPERE = {
    "gelu": (product(136, 264, 200, epilogue=GELU), AmpereTile()),
    "shared": (product(72, 136, 64, batch=5, shared=True, right="columns"), AmpereTile(64, 64, 2, 2, 128, 4)),
    "dynamic": (
        product(300, 131, 64, dynamic=True, epilogue=RESIDUAL),
        AmpereTile(128, 256, 2, 4, 64, 3),
    ),
    "i8": (product(136, 136, 144, dtype="i8", out="f32"), AmpereTile()),
    "tf32": (product(136, 136, 144, dtype="f32", out="f32"), AmpereTile()),
}


def compare(kernel, config: Config, target: Target, folder) -> None:
    try:
        headers = find_headers()
    except BackendUnavailableError as error:
        pytest.skip(f"{CUTLASS}: {error.cause}")
    source = library_source(kernel, config, target, headers.version)
    compiler = find_compiler("nvcc")
    options = {"compiler": "nvcc", "path": compiler.path, "version": compiler.version, "arch": target.name}
    build_in_worker([source], folder, {**options, "include": headers.folder})
    launch = load_unit(folder)[source.key]
    given: list[torch.Tensor | int] = []
    for arg in kernel.args:
        count = evaluate(arg.numel or 0, {"s0": ROWS})
        if arg.kind == "size":
            given.append(ROWS)
        elif arg.dtype.is_integer:
            given.append(torch.randint(-100, 100, (count,), dtype=arg.dtype.torch, device="cuda"))
        else:
            given.append(torch.randn(count, device="cuda").to(arg.dtype.torch))
    wanted = [value.clone() if isinstance(value, torch.Tensor) else value for value in given]
    run_kernel(kernel, wanted)
    for _ in range(2):
        launch(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(*given)
    for arg, value in zip(kernel.args, given, strict=True):
        if arg.kind == "out":
            value.zero_()
    graph.replay()
    torch.cuda.synchronize()
    for arg, found, expected in zip(kernel.args, given, wanted, strict=True):
        if arg.kind == "out":
            largest = float(expected.float().abs().max())
            torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=2e-2 * largest)


@pytest.mark.parametrize("name", HOPPER)
@pytest.mark.usefixtures("hopper")
def test_collectives(tmp_path, name):
    kernel, config = HOPPER[name]
    compare(kernel, config.config, Target(), tmp_path)


@pytest.mark.parametrize("name", AMPERE)
@pytest.mark.usefixtures("ampere")
def test_templates_for_ampere(tmp_path, name):
    """Newer GPUs translate what is compiled for an Ampere."""
    kernel, tile = AMPERE[name]
    compare(kernel, tile.config, Target(80), tmp_path)


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
