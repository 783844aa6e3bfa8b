"""The backend as the core sees it: what it claims, what it lacks, and what it is built with."""

from __future__ import annotations

import pytest

from cutlass_kernels import product
from polyfuse.base.errors import BackendUnavailableError, InvalidOptionError
from polyfuse.base.settings import Settings
from polyfuse.ir.expr import Expr, apply, cast, const, load
from polyfuse.ir.nodes import Pointwise, Reduction
from polyfuse.ir.types import DType
from polyfuse.plugin import Claim
from polyfuse.symbolic import axis
from polyfuse_cuda import toolchain
from polyfuse_cutlass.backend import CutlassBackend
from polyfuse_cutlass.build.artifact import Artifact, write_unit
from polyfuse_cutlass.claims import claim_of
from polyfuse_cutlass.doctor import findings
from polyfuse_cutlass.manifest import polyfuse_manifest
from polyfuse_cutlass.target import Target, target_of

ROWS, COLUMNS, DEPTH = axis("i0", 64), axis("i1", 64), axis("r0", 64)


def settings(**options: str) -> Settings:
    return Settings.resolve(None, {f"cutlass.{name}": value for name, value in options.items()})


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    found = toolchain.Compiler("nvcc", "/somewhere/nvcc", "13")
    monkeypatch.setattr("polyfuse_cutlass.backend.find_compiler", lambda kind: found)


def dot(dtype: DType, kind: str = "dot", rows: int = 64) -> Reduction:
    left = load("a", rows * ROWS + DEPTH, dtype)
    return Reduction("n", (ROWS, COLUMNS), (DEPTH,), ("c",), 64 * ROWS + COLUMNS, kind, (left, left))


def claim(node: Reduction | Pointwise) -> Claim:
    return claim_of(node)


@pytest.mark.parametrize("dtype", (DType.bf16, DType.f16, DType.i8, DType.u8, DType.f8e4m3, DType.f8e5m2))
def test_matmuls_are_claimed(dtype):
    assert claim(dot(dtype))


@pytest.mark.parametrize(
    ("node", "reason"),
    (
        (dot(DType.f32), "torch does not allow"),
        (dot(DType.f64), "take no f64"),
        (dot(DType.f32, "sum"), "no matrix multiplication"),
    ),
)
def test_other_reductions_are_refused(node, reason):
    answer = claim(node)
    assert not answer and reason in answer.reason


def test_rounded_matmuls_of_f32_are_claimed():
    assert claim(dot(DType.f32, "dot_tf32"))


def test_operands_that_are_computed_are_refused():
    node = dot(DType.bf16)
    value = cast(apply("neg", cast(node.values[0], DType.f32)), DType.bf16)
    changed = Reduction("n", node.axes, node.raxes, ("c",), node.index, "dot", (value, node.values[1]))
    assert "computed before" in claim(changed).reason


def test_epilogues_are_claimed_unless_they_draw_numbers():
    def loop(value):
        return Pointwise("n", (ROWS,), (), "c", ROWS, value)

    value = load("a", ROWS, DType.f32)
    assert claim(loop(apply("erf", value)))
    drawn = Expr("rand", (const(1, DType.i64), const(2, DType.i64)), DType.f32, "uniform")
    assert not claim(loop(apply("mul", value, drawn)))


def test_a_kernel_that_spills_is_found_wanting(compiler, tmp_path):
    backend = CutlassBackend(settings(target="sm_90"))
    meta = backend.emit(product(64, 64, 64)).meta
    for key, spilled, serial in (("good", 0, False), ("spills", 400, False), ("waits", 0, True)):
        write_unit(tmp_path, [Artifact(key, key, key, "x", meta, spilled, serial)], "none")
        assert bool(backend.review(tmp_path, key)) == (key == "good")


def test_what_it_depends_on_is_described(compiler):
    backend = CutlassBackend(settings(target="sm_90"))
    assert backend.describe()["compiler"] == "nvcc 13" and backend.describe()["arch"] == "sm_90a"
    assert backend.machine() == {"gpu": "sm_90a"} and backend.target_info("cuda:0").alignment == 16
    assert backend.autotunes_gemm


def test_other_architectures_are_refused():
    with pytest.raises(InvalidOptionError, match="sm_75"):
        target_of(settings(target="sm_75"))
    assert target_of(settings(target="sm_90")) == Target()


def test_without_a_compiler_it_says_so_in_one_sentence(monkeypatch):
    monkeypatch.setattr(toolchain, "_nvcc", lambda: None)
    monkeypatch.setattr("polyfuse_cuda.nvrtc.version", lambda: "")
    with pytest.raises(BackendUnavailableError, match="neither nvcc nor NVRTC was found"):
        toolchain.find_compiler()
    (_, compiler) = findings(settings(target="sm_90"))
    assert "neither" in compiler.detail and "CUDA_HOME" in compiler.fix


def test_the_library_replaces_a_missing_nvcc(monkeypatch):
    monkeypatch.setattr(toolchain, "_nvcc", lambda: None)
    monkeypatch.setattr("polyfuse_cuda.nvrtc.version", lambda: "13.0")
    assert toolchain.find_compiler() == toolchain.Compiler("nvrtc", "", "13.0")
    with pytest.raises(BackendUnavailableError, match="nvcc was not found"):
        toolchain.find_compiler("nvcc")


def test_others_are_asked_first():
    manifest = polyfuse_manifest()
    assert manifest.name == "cutlass" and 0 < (manifest.rank("cuda") or 0) < 100
