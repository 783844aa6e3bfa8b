"""Library calls said as loops give what the library gives, alone and with their neighbours fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gemm_kernels import kernels_of
from polyfuse.autotune import search as search_module
from polyfuse.autotune.candidate import BuiltProgram
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.ir.statements import Reduce
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import accumulates, result_types
from polyfuse.kit import match
from polyfuse.plugin import Config, Source
from polyfuse.reference.backend import InterpreterBackend

R = torch.randn
BF = torch.bfloat16


def _bf(*size: int) -> torch.Tensor:
    return torch.randn(size).to(BF)


CASES: dict[str, tuple[Any, tuple[torch.Tensor, ...], int]] = {
    "mm": (torch.mm, (R(7, 5), R(5, 9)), 1),
    "transposed": (lambda a, b: a.t() @ b.t(), (R(5, 7), R(9, 5)), 1),
    "bias and gelu": (lambda a, b, c: F.gelu(a @ b + c) * 2, (R(7, 5), R(5, 9), R(9)), 1),
    "linear": (F.linear, (R(2, 7, 5), R(9, 5), R(9)), 1),
    "factors": (lambda c, a, b: torch.addmm(c, a, b, alpha=0.5, beta=2), (R(9), R(7, 5), R(5, 9)), 1),
    "no bias": (lambda c, a, b: torch.addmm(c, a, b, beta=0), (R(9) * torch.nan, R(7, 5), R(5, 9)), 1),
    "bmm": (lambda a, b: torch.relu(torch.bmm(a, b)), (R(3, 7, 5), R(3, 5, 9)), 1),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, alpha=0.5), (R(3, 7, 9), R(3, 7, 5), R(3, 5, 9)), 1),
    "half": (lambda a, b, c: (a @ b).relu() + c, (_bf(7, 5), _bf(5, 9), _bf(7, 9)), 1),
    "vector": (lambda a, b: (a @ b).sigmoid(), (R(1, 5), R(5, 9)), 1),
    "replace_calls": (lambda a, b: a.expand(7, 5) @ b, (R(1, 5), R(5, 9)), 1),
    "integers": (torch.mm, (torch.randint(-9, 9, (7, 5)), torch.randint(-9, 9, (5, 9))), 1),
    "conv": (lambda x, w, b: F.conv2d(x, w, b, 2, 1).relu(), (R(2, 4, 9, 9), R(6, 4, 3, 3), R(6)), 1),
    "conv groups": (lambda x, w: F.conv2d(x, w, groups=2, dilation=2), (R(2, 4, 9, 9), R(6, 2, 3, 3)), 1),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=2), (R(2, 4, 9), R(6, 4, 3)), 1),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=(0, 1, 2)), (R(1, 2, 4, 5, 6), R(3, 2, 3, 3, 3)), 1),
    "two results": (lambda a, b: (a @ b, (a @ b).relu()), (R(7, 5), R(5, 9)), 1),
    "softmax after": (lambda a, b: (a @ b).softmax(-1), (R(7, 5), R(5, 9)), 2),
    "two products": (lambda a, b, c: F.silu(a @ b) * (a @ c), (R(7, 5), R(5, 9), R(5, 9)), 2),
    "chain": (lambda a, b, c: (a @ b).relu() @ c, (R(7, 5), R(5, 9), R(9, 4)), 2),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", CASES)
def test_generated_gemms(name: str) -> None:
    function, args, count = CASES[name]
    kernels = kernels_of(function, *args)
    assert len(kernels) == count
    assert any(match(k) for k in kernels)


@pytest.mark.parametrize("name", ["bias and gelu", "conv", "two results"])
def test_epilogues_stay_out_on_request(name: str) -> None:
    function, args, _ = CASES[name]
    kernels = kernels_of(function, *args, epilogue_fusion=False)
    assert len(kernels) == 2
    assert sum(bool(match(k)) for k in kernels) == 1


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("left", "right"),
    [((1, 2), (2, 1)), ((3, 1, 5), (3, 5, 1)), ((2, 1, 1, 5), (2, 4, 5, 1))],
    ids=["one result", "a batch", "a batch that is broadcast"],
)
@pytest.mark.parametrize("dtype", [torch.float32, BF, torch.int32])
def test_rows_times_columns_are_plain_sums(left: Any, right: Any, dtype: torch.dtype) -> None:
    """No backend has tiles for matmuls of which no two results share an operand."""
    a, b = ((R(*size) * 4).to(dtype) for size in (left, right))
    (kernel,) = kernels_of(lambda a, b: (a @ b) + 1, a, b)
    assert not has_dot(kernel)


def test_what_reads_a_result_at_many_points_is_no_epilogue() -> None:
    """Each sum is used along another axis that happens to be as long as the depth (relative positions)."""
    kernels = kernels_of(lambda x, a, b: x + (a @ b)[:, :, None], R(7, 9, 5), R(7, 5), R(5, 9))
    assert len(kernels) == 2 and sum(bool(match(k)) for k in kernels) == 1
    assert sum(map(has_dot, kernels)) == 1


def has_dot(kernel: Kernel) -> bool:
    """Whether a kernel multiplies matrices."""
    statements = (stmt for section in kernel.sections for stmt in section.body)
    return any(isinstance(stmt, Reduce) and stmt.kind in CONTRACTIONS for stmt in statements)


def test_dynamic_sizes() -> None:
    kernels = kernels_of(lambda a, b: (a @ b).relu(), R(7, 5), R(5, 9), dynamic=True)
    found = match(kernels[0])
    assert found is not None
    assert found.shape == (1, 7, 9, 5)


def test_training_through_generated_gemms() -> None:
    w, x = R(9, 5, requires_grad=True), R(7, 5, requires_grad=True)
    options = {"backends": ["interpreter"], "gemm": "generated", "strict": True}
    compiled = torch.compile(lambda x, w: F.gelu(F.linear(x, w)).sum(), backend="polyfuse", options=options)
    wanted = torch.autograd.grad(F.gelu(F.linear(x, w)).sum(), (x, w))
    found = torch.autograd.grad(compiled(x, w), (x, w))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("left", "right", "gives"),
    [
        (DType.bf16, DType.bf16, DType.f32),
        (DType.f8e4m3, DType.f8e5m2, DType.f32),
        (DType.i8, DType.u8, DType.i32),
        (DType.f64, DType.f64, DType.f64),
        (DType.i64, DType.i64, DType.i64),
    ],
)
def test_types_of_gemms(left: DType, right: DType, gives: DType) -> None:
    assert result_types("reduce", "dot", (left, right)) == (gives,)
    assert accumulates(left) is gives


@pytest.mark.parametrize("pair", [(DType.bf16, DType.f16), (DType.bool, DType.bool), (DType.f32, DType.f64)])
def test_types_that_are_not_multiplied(pair: tuple[DType, DType]) -> None:
    assert isinstance(result_types("reduce", "dot", pair), str)
    assert isinstance(result_types("reduce", "dot_tf32", (DType.bf16, DType.bf16)), str)
    assert isinstance(result_types("reduce", "dot_fast", (DType.bf16, DType.bf16)), str)


@pytest.mark.parametrize(("given", "kind"), [({}, "dot"), ({"use_fast_accum": True}, "dot_fast")])
def test_sums_of_narrow_floats_are_as_accurate_as_was_asked_for(given: dict[str, bool], kind: str) -> None:
    narrow = torch.float8_e4m3fn
    left, right = R(32, 64).to(narrow), R(48, 64).to(narrow)
    one = torch.ones(())

    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(left, right.t(), one, one, out_dtype=BF, **given)

    (kernel,) = kernels_of(product, left, right)
    found = match(kernel)
    assert found is not None and found.kind == kind


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InterpreterBackend, "autotunes_gemm", True)


def _tried(
    tmp_path: Path, times: Mapping[str, float], monkeypatch: pytest.MonkeyPatch, **more: object
) -> list[str]:
    """The operators called and backends used for one product, where implementations take these times."""
    timed: list[Sequence[str]] = []

    def fake(runner: Any, problem: Any, candidates: Sequence[BuiltProgram], *_: Any) -> dict[str, float]:
        timed.append([c.name for c in candidates])
        runner.prepare(problem)
        for c in candidates:
            runner.first(c)
        return {c.name: times[c.name] for c in candidates}

    monkeypatch.setattr(search_module, "run_trials", fake)
    options = {
        "backends": ["interpreter"],
        "gemm": "fastest",
        "strict": True,
        "tune_in_process": True,
        "deterministic": "off",
        "cache_dir": str(tmp_path),
        **more,
    }
    torch._dynamo.reset()  # it forgets sessions too
    reset_reports()
    a, b, c = R(7, 5), R(5, 9), R(9)
    function = lambda a, b, c: F.gelu(a @ b + c)  # noqa: E731
    compiled = torch.compile(function, backend="polyfuse", options=options)
    torch.testing.assert_close(compiled(a, b, c), function(a, b, c))
    decisions = [decision for report in last_reports() for decision in report.decisions]
    return [*(d.second for d in decisions if d.kind == "choice"), f"timed {len(timed)}"]


def test_the_fastest_is_used_and_trials_are_stored(
    tmp_path: Path, trials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = {"library": 1.0, "interpreter": 0.5}
    assert _tried(tmp_path, fast, monkeypatch) == ["interpreter", "timed 1"]
    assert _tried(tmp_path, {"library": 0.1, "interpreter": 5.0}, monkeypatch) == ["interpreter", "timed 0"]


def test_lookups_alone(tmp_path: Path, trials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed; what was timed before is used."""
    fast = {"library": 1.0, "interpreter": 0.5}
    assert _tried(tmp_path, fast, monkeypatch, tune_lookup=True) == ["library", "timed 0"]
    assert _tried(tmp_path, fast, monkeypatch) == ["interpreter", "timed 1"]
    assert _tried(tmp_path, fast, monkeypatch, tune_lookup=True) == ["interpreter", "timed 0"]


def test_the_library_is_used_where_times_are_equal(
    tmp_path: Path, trials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _tried(tmp_path, {"library": 1.0, "interpreter": 0.99}, monkeypatch) == ["library", "timed 1"]


def test_what_fails_is_not_used(tmp_path: Path, trials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"library": 1.0, "interpreter": float("inf")}
    assert _tried(tmp_path, times, monkeypatch) == ["library", "timed 1"]


def test_real_trials(tmp_path: Path, trials: None) -> None:
    options = {
        "backends": ["interpreter"],
        "gemm": "fastest",
        "strict": True,
        "tune_in_process": True,
        "deterministic": "off",
        "cache_dir": str(tmp_path),
    }
    compiled = torch.compile(lambda a, b: (a @ b).relu(), backend="polyfuse", options=options)
    a, b = R(7, 5), R(5, 9)
    torch.testing.assert_close(compiled(a, b), (a @ b).relu())
    assert list((tmp_path / "timings").rglob("*.json"))


def test_nobody_is_emitted_twice(tmp_path: Path, trials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    plain = InterpreterBackend.emit

    def emit(self: InterpreterBackend, kernel: Kernel, config: Config | None = None) -> Source:
        found = plain(self, kernel)
        if match(kernel) is not None:
            written.append(str(config))
        return Source(found.name, found.text, found.language, meta=str(config))

    monkeypatch.setattr(InterpreterBackend, "emit", emit)
    monkeypatch.setattr(InterpreterBackend, "configs", lambda *_: [Config.of(n=n) for n in range(3)])
    monkeypatch.setattr(InterpreterBackend, "neighbours", lambda *_: [Config.of(n=3)])
    times = {"library": 9.0} | {f"interpreter n={n}": 5.0 - n for n in range(4)}
    assert _tried(tmp_path, times, monkeypatch) == ["interpreter n=3", "timed 2"]
    # the winner once more, for the program
    assert sorted(written) == ["n=0", "n=1", "n=2", "n=3", "n=3"]


@pytest.mark.parametrize(("library", "further"), [(1.0, []), (9.0, [[3, 4, 5, 6], [6, 7, 8]])])
def test_little_is_built_where_a_backend_ranks_what_it_offers(
    library: float, further: list[list[int]], tmp_path: Path, trials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few at first. Where one does well, those that are estimated to be about as fast follow."""
    plain, ready = InterpreterBackend.emit, search_module.Search.ready
    rounds: list[list[str]] = []

    def emit(self: InterpreterBackend, kernel: Kernel, config: Config | None = None) -> Source:
        found = plain(self, kernel)
        return Source(found.name, found.text, found.language, meta=str(config))

    def noted(self: Any, builder: Any) -> list[BuiltProgram]:
        found = ready(self, builder)
        rounds.append([program.name for program in found])
        return found

    monkeypatch.setattr(search_module.Search, "ready", noted)
    monkeypatch.setattr(InterpreterBackend, "emit", emit)
    monkeypatch.setattr(InterpreterBackend, "configs", lambda *_: [Config.of(n=n) for n in range(9)])
    monkeypatch.setattr(InterpreterBackend, "estimate", lambda *given: 30.0 + (given[2].get("n") or 0))
    _tried(
        tmp_path, {"library": library} | {f"interpreter n={n}": 5.0 - n / 10 for n in range(9)}, monkeypatch
    )
    wanted = [["library", *(f"interpreter n={n}" for n in range(4))]]
    assert rounds == wanted + [[f"interpreter n={n}" for n in found] for found in further]
