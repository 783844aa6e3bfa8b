"""GEMM kernels of the CUTLASS plugin on a Hopper GPU, against the reference interpreter and eager mode."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cutlass_kernels import GELU, PLAIN, RESIDUAL, SCALED, folded, product
from polyfuse.base.errors import BackendUnavailableError
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.kernel import Kernel
from polyfuse.symbolic import evaluate
from polyfuse_cutlass.backend import CutlassBackend
from polyfuse_cutlass.codegen.row_statistics import COLUMNS
from polyfuse_cutlass.problem import problem_of
from polyfuse_cutlass.space import configs
from polyfuse_cutlass.tiling import Tiling
from requirements import NVRTC, needs_nvcc

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("hopper"),
    needs_nvcc,
]

TILINGS = {
    "wide": Tiling(1, 256, stages=4),
    "tall": Tiling(2, 128, stages=4),
    "pingpong": Tiling(2, 128, pingpong=True, stages=5),
    "whole lines": Tiling(1, 256, stages=4, fragment=64),
    "pingpong, whole lines": Tiling(2, 128, pingpong=True, stages=5, fragment=64),
    "pingpong across": Tiling(1, 256, pingpong=True, across=2, stages=5),
    "across": Tiling(1, 128, across=2, stages=4),
    "down": Tiling(2, 128, down=2, stages=4),
    "square": Tiling(1, 256, across=2, down=2, stages=4),
    "split": Tiling(1, 64, split=4, stages=6),
    "split across": Tiling(1, 64, across=2, split=2, stages=6),
    "split down": Tiling(1, 128, down=2, split=2, stages=6),
    "few": Tiling(1, 16, consumers=1, stages=6, swap=True),
    "few even": Tiling(1, 16, consumers=1, stages=6, swap=True, used=40),
    "few even tall": Tiling(2, 16, consumers=1, stages=8, swap=True, used=112),
    "few even split": Tiling(1, 16, consumers=2, split=2, stages=8, swap=True, used=88),
    "few even across": Tiling(1, 32, consumers=1, across=2, stages=8, swap=True, used=48),
    "few split": Tiling(1, 16, consumers=1, split=2, stages=6, swap=True),
}


@pytest.fixture(scope="module")
def backend() -> CutlassBackend:
    return CutlassBackend(Settings.resolve(None, {}))


def operands(kernel: Kernel, rows: int) -> list[torch.Tensor | int]:
    found: list[torch.Tensor | int] = []
    for arg in kernel.args:
        count = evaluate(arg.numel or 0, {"s0": rows})
        if arg.kind == "size":
            found.append(rows)
        elif arg.dtype.is_integer:
            found.append(torch.randint(-100, 100, (count,), dtype=arg.dtype.torch, device="cuda"))
        else:
            found.append(torch.randn(count, device="cuda").to(arg.dtype.torch))
    return found


def compare(backend: CutlassBackend, kernel: Kernel, tiling: Tiling, rows: int, folder) -> None:
    source = backend.emit(kernel, tiling.config)
    backend.build([source], folder)
    launch = backend.load(folder)[source.key]
    given = operands(kernel, rows)
    wanted = [value.clone() if isinstance(value, torch.Tensor) else value for value in given]
    run_kernel(kernel, wanted)
    for _ in range(2):
        launch(*given)
    torch.cuda.synchronize()
    for arg, found, expected in zip(kernel.args, given, wanted, strict=True):
        if arg.kind == "out":
            found, expected = found.float(), expected.float()
            step = 0.13 if arg.dtype.is_eight_bit_float else 2e-2
            torch.testing.assert_close(found, expected, rtol=step, atol=2e-2 * float(expected.abs().max()))


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("left", ("depth", "rows"))
@pytest.mark.parametrize("right", ("depth", "columns"))
def test_layouts(backend, tmp_path, tiling, left, right):
    one, kernel = TILINGS[tiling], product(136, 264, 200, left=left, right=right, epilogue=GELU)
    problem = problem_of(kernel)
    fault = one.fault(problem.swapped if one.swap else problem)
    if fault:
        pytest.skip(f"the tiling does not take this layout: {fault}")
    compare(backend, kernel, one, 136, tmp_path)


ROUNDED = {
    **{name: TILINGS[name] for name in ("wide", "tall", "pingpong", "whole lines", "across", "square")},
    "three fragments": Tiling(1, 192, stages=4),
    "overlapping fragments": Tiling(1, 176, stages=4),
    "little more than a fragment": Tiling(1, 72, stages=4),
    "one group": Tiling(1, 64, consumers=1, stages=4),
    "swapped": Tiling(1, 64, stages=4, swap=True),
}
"""Tilings whose results may be rounded before they leave a thread."""


@pytest.mark.parametrize("tiling", ROUNDED)
@pytest.mark.parametrize("shape", ((136, 264, 200), (700, 1000, 72), (300, 64, 64), (3, 8, 8)))
def test_rounded_results(backend, tmp_path, tiling, shape):
    """What varies with rows and columns, edges within tiles and fragments, and rows that are not dense."""
    one, (rows, columns, _) = ROUNDED[tiling], shape
    index = f"{rows}*i1 + i0" if one.swap and rows % 8 == 0 else ""
    kernel = product(*shape, epilogue=SCALED, index=index, pitch=0 if index else columns + 16)
    text = backend.emit(kernel, one.config).text
    assert ("put_matrices(fragment" in text) == (not one.swap or bool(index))
    compare(backend, kernel, one, rows, tmp_path)


@pytest.mark.parametrize(
    ("dtype", "out"), (("f16", "f16"), ("f32", "bf16"), ("i8", "f16"), ("f8e4m3", "bf16"), ("f8e5m2", "f16"))
)
@pytest.mark.parametrize("batch", (0, 3))
def test_rounded_types_and_batches(backend, tmp_path, dtype, out, batch):
    kernel = product(328, 400, 208, dtype=dtype, out=out, batch=batch, epilogue=SCALED)
    assert "put_matrices(fragment" in backend.emit(kernel, Tiling(1, 176, stages=4).config).text
    compare(backend, kernel, Tiling(1, 176, stages=4), 328, tmp_path)


@pytest.mark.parametrize("rows", (1, 63, 129))
def test_rounded_rows_known_at_run_time(backend, tmp_path, rows):
    kernel = product(300, 136, 64, dynamic=True, epilogue=SCALED, batch=2)
    assert "put_matrices(fragment" in backend.emit(kernel, Tiling(1, 64, stages=4).config).text
    compare(backend, kernel, Tiling(1, 64, stages=4), rows, tmp_path)


@pytest.mark.parametrize("tiling", ("wide", "pingpong", "three fragments", "overlapping fragments"))
def test_rounded_results_over_many_rounds(backend, tmp_path, tiling):
    """Chunks wait for the copy engine while the next tiles are multiplied."""
    x, w = (torch.randn(n, 264, device="cuda").bfloat16() for n in (8000, 8200))
    bias, scale = torch.randn(8200, device="cuda").bfloat16(), torch.rand(8000, device="cuda")
    kernel = product(8000, 8200, 264, epilogue=SCALED)
    source = backend.emit(kernel, ROUNDED[tiling].config)
    backend.build([source], tmp_path)
    launch = backend.load(tmp_path)[source.key]
    out = torch.full((8000, 8200), torch.nan, device="cuda", dtype=torch.bfloat16)
    given = {"in0": x, "in1": w, "bias": bias, "scale": scale, "out0": out}
    wanted = (x @ w.t()).float() * scale[:, None] + bias.float()
    for _ in range(3):
        launch(*(given[arg.name] for arg in kernel.args))
        torch.testing.assert_close(out.float(), wanted, rtol=2e-2, atol=1e-1)
        out.fill_(torch.nan)


@pytest.mark.parametrize("shape", ((1, 8, 8), (3, 5, 8), (13, 1000, 72), (257, 130, 64), (300, 72, 8)))
@pytest.mark.parametrize("epilogue", (PLAIN, RESIDUAL), ids=("plain", "residual"))
def test_shapes(backend, tmp_path, shape, epilogue):
    kernel = product(*shape, epilogue=epilogue)
    for number, config in enumerate(configs(kernel, backend.target)[:4]):
        folder = tmp_path / str(number)
        folder.mkdir()
        compare(backend, kernel, Tiling.of(config), shape[0], folder)


TYPES = (("f16", "f16"), ("f32", "f32"), ("i8", "bf16"), ("f8e4m3", "bf16"), ("bf16", "f8e4m3"))


@pytest.mark.parametrize(("dtype", "out"), TYPES)
def test_types(backend, tmp_path, dtype, out):
    compare(
        backend, product(136, 136, 144, dtype=dtype, out=out, epilogue=GELU), Tiling(1, 128), 136, tmp_path
    )


@pytest.mark.parametrize(
    "tiling",
    (
        Tiling(1, 192, across=2, stages=5),
        Tiling(1, 128, pingpong=True, stages=8),
        Tiling(1, 64, split=2, stages=6),
        Tiling(1, 256, across=2, stages=4),
        Tiling(2, 128, stages=4),
        Tiling(1, 256, stages=4, fragment=64),
        Tiling(2, 128, stages=2),
    ),
    ids=("wide", "pingpong", "split", "two splits", "tall", "whole lines", "short ring"),
)
@pytest.mark.parametrize("depth", (64, 144, 528, 1184))
@pytest.mark.parametrize("kind", ("dot", "dot_fast"))
def test_narrow_floats(backend, tmp_path, tiling, depth, kind):
    kernel = product(136, 264, depth, dtype="f8e4m3", epilogue=RESIDUAL, kind=kind)
    compare(backend, kernel, tiling, 136, tmp_path)


@pytest.mark.parametrize("fast", (False, True))
def test_scaled_matmuls_are_as_accurate_as_the_librarys(fast):
    narrow, depth = torch.float8_e4m3fn, 8192
    x, w = (torch.randn(n, depth, device="cuda").to(narrow) for n in (256, 512))
    rows, columns = torch.rand(256, 1, device="cuda") + 0.5, torch.rand(1, 512, device="cuda") + 0.5

    def scaled(x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        given = {"out_dtype": torch.bfloat16, "use_fast_accum": fast}
        return torch._scaled_mm(x, w.t(), scale_a=rows, scale_b=columns, **given)

    options = {"gemm": "generated", "backends": ["cutlass", "triton"]}
    with torch.no_grad():
        found = torch.compile(scaled, backend="polyfuse", options=options)(x, w, rows, columns)
    assert [launch.backend for launch in last_reports()[-1].launches] == ["cutlass"]
    wanted = (x.double() @ w.double().t()) * rows * columns
    ours, theirs = ((y - wanted).abs().mean() for y in (found, scaled(x, w, rows, columns)))
    assert ours < 1.05 * theirs


@pytest.mark.parametrize("shared", (False, True))
@pytest.mark.parametrize("epilogue", (PLAIN, RESIDUAL), ids=("plain", "residual"))
@pytest.mark.parametrize("tiling", ("few", "wide", "pingpong, whole lines"))
def test_batches(backend, tmp_path, shared, epilogue, tiling):
    kernel = product(72, 136, 64, batch=5, shared=shared, epilogue=epilogue)
    compare(backend, kernel, TILINGS[tiling], 72, tmp_path)


@pytest.mark.parametrize("rows", (1, 64, 130))
def test_rows_known_at_run_time(backend, tmp_path, rows):
    compare(backend, product(300, 136, 64, dynamic=True), Tiling(1, 64, stages=4), rows, tmp_path)


def test_tiles_in_turn_over_many_rounds(backend, tmp_path):
    """More tiles than multiprocessors, and a depth that is no multiple of the ring."""
    x, w = (torch.randn(n, 520, device="cuda").bfloat16() for n in (4000, 4096))
    kernel = product(4000, 4096, 520)
    for number, name in enumerate(("pingpong", "pingpong across")):
        folder = tmp_path / str(number)
        folder.mkdir()
        source = backend.emit(kernel, TILINGS[name].config)
        backend.build([source], folder)
        out = torch.empty(4000, 4096, device="cuda", dtype=torch.bfloat16)
        backend.load(folder)[source.key](x, w, out)
        torch.testing.assert_close(out, x @ w.t(), rtol=2e-2, atol=1e-1)


def test_launches_that_follow_each_other(backend, tmp_path):
    """Launched one by one, and recorded."""
    kernel = product(512, 512, 512)
    source = backend.emit(kernel, Tiling(1, 64, stages=4).config)
    backend.build([source], tmp_path)
    launch = backend.load(tmp_path)[source.key]
    x = torch.randn(512, 512, device="cuda").bfloat16()
    w = (torch.randn(512, 512, device="cuda") / 22).bfloat16()
    y, z = torch.empty_like(x), torch.empty_like(x)

    def run() -> None:
        launch(x, w, y)
        for _ in range(10):
            launch(y, w, z)
            launch(z, w, y)

    wanted = x
    for _ in range(21):
        wanted = wanted @ w.t()
    run()
    torch.testing.assert_close(y, wanted, rtol=0.1, atol=0.1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    y.zero_()
    graph.replay()
    torch.testing.assert_close(y, wanted, rtol=0.1, atol=0.1)


def test_compiled_by_the_library_of_torchs_wheels(tmp_path):
    """As where there is no nvcc."""
    try:
        backend = CutlassBackend(Settings.resolve(None, {"cutlass.compiler": "nvrtc"}))
    except BackendUnavailableError as error:
        pytest.skip(f"{NVRTC}: {error.cause}")
    assert backend.compiler.kind == "nvrtc"
    compare(backend, product(136, 264, 200, epilogue=GELU), TILINGS["across"], 136, tmp_path)


def test_without_a_mode_nothing_is_asked_of_it(monkeypatch):
    """So nothing waits for its compiler."""
    asked: list[str] = []
    for name in ("configs", "emit", "worker_options"):
        real = getattr(CutlassBackend, name)
        monkeypatch.setattr(
            CutlassBackend, name, lambda *a, n=name, f=real, **k: asked.append(n) or f(*a, **k)
        )
    x, w, b = (torch.randn(*s, device="cuda").bfloat16() for s in ((128, 512), (1024, 512), (1024,)))
    with torch.no_grad():
        torch.compile(lambda x, w, b: F.gelu(F.linear(x, w, b)) + 1, backend="polyfuse")(x, w, b)
    assert asked == [] and "cutlass" not in [launch.backend for launch in last_reports()[-1].launches]


def test_through_the_compiler():
    x, w, b = (torch.randn(*s, device="cuda").bfloat16() for s in ((128, 512), (1024, 512), (1024,)))
    options = {"gemm": "generated", "backends": ["cutlass", "triton"]}
    with torch.no_grad():
        compiled = torch.compile(
            lambda x, w, b: F.gelu(F.linear(x, w, b)), backend="polyfuse", options=options
        )
        found = compiled(x, w, b)
    wanted = F.gelu(F.linear(x.double(), w.double(), b.double()))
    assert (found.double() - wanted).abs().max() < 2e-2 * wanted.abs().max()
    assert [launch.backend for launch in last_reports()[-1].launches] == ["cutlass"]


FOLDING = {
    **{name: one for name, one in ROUNDED.items() if not one.swap and one.columns % COLUMNS == 0},
    "half a fragment more": Tiling(1, 96, stages=4),
}
"""Tilings whose tiles hold whole groups of rows and of columns."""


@pytest.mark.parametrize("tiling", FOLDING)
@pytest.mark.parametrize("epilogue", (SCALED, RESIDUAL), ids=("rounded", "as sums"))
@pytest.mark.parametrize(
    ("mode", "along", "shape"),
    (("group_max", "columns", (136, 264, 200)), ("group_sum", "rows", (700, 1000, 72))),
)
def test_groups_of_results(backend, tmp_path, tiling, epilogue, mode, along, shape):
    """Edges within groups, and groups of fragments that overlap."""
    kernel = folded(product(*shape, epilogue=epilogue), mode, along)
    text = backend.emit(kernel, FOLDING[tiling].config).text
    assert ("put_matrices(fragment" in text) == (epilogue == SCALED)
    compare(backend, kernel, FOLDING[tiling], shape[0], tmp_path)


@pytest.mark.parametrize(("mode", "along"), (("group_min", "rows"), ("group_sum", "columns")))
@pytest.mark.parametrize("out", ("f32", "f16"))
def test_groups_of_other_results(backend, tmp_path, mode, along, out):
    compare(backend, folded(product(77, 104, 64, out=out), mode, along), FOLDING["one group"], 77, tmp_path)


def backward(
    x: torch.Tensor, w: torch.Tensor, z: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad = (x @ w) * torch.sigmoid(z)
    return grad, grad.sum(0), grad.abs().amax(-1)


def test_reductions_begin_with_the_matmul():
    """A gradient, its bias's, and what an 8-bit scale needs: in a fixed order, and NaN where there is one."""
    x, w, z = (torch.randn(*s, device="cuda").bfloat16() for s in ((200, 256), (256, 520), (200, 520)))
    z[7, :40] = torch.nan
    options = {"gemm": "generated", "backends": ["cutlass", "triton"]}
    with torch.no_grad():
        compiled = torch.compile(backward, backend="polyfuse", options=options)
        found, again = compiled(x, w, z), compiled(x, w, z)
    report = last_reports()[-1]
    assert report.launches[0].backend == "cutlass"
    assert len([d for d in report.decisions if d.kind == "split"]) == 2
    for one, other, wanted in zip(found, again, backward(x.double(), w.double(), z.double()), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        limit = 2e-2 * float(wanted.nan_to_num().abs().max())
        torch.testing.assert_close(one.double(), wanted, rtol=2e-2, atol=limit, equal_nan=True)
