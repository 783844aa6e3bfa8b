"""GEMMs with few rows, which a backend may generate without timing: one row as a sum of products, more with
the depth split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyfuse.autotune import gemm_candidates
from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.ir.nodes import Reduction
from polyfuse.symbolic import axis_size
from polyfuse_cpp.backend import CppBackend

STREAMED = "it reads its matrix at the memory's rate"


@pytest.fixture
def run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compile with a backend that streams, split into `parts` (a number, or a method that says); answers the
    report.
    """

    def compiled(
        function: Callable[..., Tensor], *args: Tensor, parts: Any = 0, **options: Any
    ) -> GraphReport:
        monkeypatch.setattr(CppBackend, "streams_matvec", True)
        monkeypatch.setattr(CppBackend, "streaming_parts", parts if callable(parts) else lambda *_: parts)
        forget_sessions()
        reset_reports()
        torch.compiler.reset()
        dynamic = options.pop("dynamic", False)
        chosen = {"backends": ["cpp"], "strict": True, "cache_dir": str(tmp_path), **options}
        with torch.no_grad():
            result = torch.compile(function, backend="polyfuse", options=chosen, dynamic=dynamic)(*args)
            wanted = function(*(a.double() for a in args))
        limit = 1e-2 if result.itemsize == 2 else 1e-5
        assert (result.double() - wanted).norm() / wanted.norm() < limit
        return last_reports()[-1]

    return compiled


def streamed(report: GraphReport) -> list[str]:
    """Names of what streams, one for each call."""
    return [d.second for d in report.decisions if d.kind == "choice" and d.reason == STREAMED]


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.linear(x, w, b)) * 2


def gated(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down) + x


def of(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(*sizes) / 8).to(dtype)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_row(run: Any, dtype: torch.dtype) -> None:
    report = run(layer, of(1, 70, dtype=dtype), of(48, 70, dtype=dtype), of(48, dtype=dtype))
    assert streamed(report) == ["cpp+matvec"] and report.kernels == 1 and not report.extern_calls


@pytest.mark.slow
def test_one_row_through_gates(run: Any) -> None:
    report = run(gated, of(1, 64), of(96, 64), of(96, 64), of(64, 96))
    assert len(streamed(report)) == 3
    assert report.kernels == 2, "both projections, their product; then the last one with the residual"


@pytest.mark.slow
def test_a_matrix_that_is_not_contiguous_along_the_sum(run: Any) -> None:
    report = run(lambda x, w: x @ w, of(1, 70), of(70, 48))
    assert not streamed(report)


def test_one_row_of_an_unknown_number(run: Any) -> None:
    assert not streamed(run(lambda x, w: F.linear(x, w), of(3, 70), of(48, 70), dynamic=True))


@pytest.mark.quick(1)
@pytest.mark.parametrize("rows, dtype", [(2, torch.bfloat16), (17, torch.float32)])
def test_parts_of_the_depth(run: Any, rows: int, dtype: torch.dtype) -> None:
    args = of(rows, 72, dtype=dtype), of(48, 72, dtype=dtype), of(48, dtype=dtype)
    report = run(layer, *args, parts=4)
    assert streamed(report) == ["cpp+split"]
    assert report.kernels == 2, "the sums of the parts are added where they are used"


@pytest.mark.slow
def test_parts_for_a_class_of_sizes(run: Any) -> None:
    """Rows from 2 to 8 are one program, further ones others, all with bounds for their number."""
    x, w, b = of(3, 72), of(48, 72), of(48)
    torch._dynamo.mark_dynamic(x, 0)
    report = run(layer, x, w, b, parts=4, dynamic=None)
    assert streamed(report) == ["cpp+split"]
    function = torch.compile(layer, backend="polyfuse", options={"backends": ["cpp"]}, dynamic=None)
    for rows in (3, 2, 15, 100, 7):
        x = of(rows, 72)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(function(x, w, b), layer(x, w, b))


@pytest.mark.quick(1)
@pytest.mark.parametrize("depth, columns", [(72, 48), (33, 7), (2100, 40)])
def test_tiles_of_as_many_rows_as_there_are(depth: int, columns: int) -> None:
    """Rows from 2 to 8 are one program of the C++ backend, which reads the weight once for up to six of them.
    Their number is met at run time; so is that of more rows, which the library multiplies.
    """
    torch.compiler.reset()
    reset_reports()
    torch.manual_seed(depth)
    w, b = of(columns, depth), of(columns)
    function = torch.compile(layer, backend="polyfuse", options={"backends": ["cpp"], "strict": True})
    for rows in (3, 2, 4, 5, 6, 7, 8, 9, 15, 20):
        x = of(rows, depth)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            wanted = layer(x.double(), w.double(), b.double())
            torch.testing.assert_close(function(x, w, b).double(), wanted, rtol=1e-5, atol=1e-6)
    first = last_reports()[0]
    assert streamed(first) == ["cpp"] and not first.extern_calls


@pytest.mark.quick(1)
@pytest.mark.parametrize("dear, parts", [(1 << 20, [2, 2, 4]), (0, [4, 4, 4])], ids=["dear", "cheap"])
def test_what_is_launched_together_is_split_together(
    run: Any, monkeypatch: pytest.MonkeyPatch, dear: int, parts: list[int]
) -> None:
    """Where launches are dear, into as many parts as all columns of one operand are, and two at least."""

    def split(self: CppBackend, matmul: Reduction) -> int:
        return 4 if max(int(axis_size(a)) for a in matmul.axes) < 60 else 1

    def function(x: Tensor, v: Tensor, w: Tensor, u: Tensor) -> Tensor:
        y = F.linear(x, w)
        return F.linear(x, v).sum() + y * F.linear(y * 2, u).mean()

    info = CppBackend.target_info
    monkeypatch.setattr(
        CppBackend, "target_info", lambda self, device: replace(info(self, device), launch_bytes=dear)
    )
    seen: list[int] = []
    plain = gemm_candidates.split_depth
    monkeypatch.setattr(
        gemm_candidates, "split_depth", lambda form, count: seen.append(count) or plain(form, count)
    )
    run(function, of(5, 64), of(40, 64), of(56, 64), of(48, 56), parts=split)
    assert sorted(set(seen)) == sorted(set(parts))


@pytest.mark.slow
def test_factors_and_several_readers(run: Any) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = torch.addmm(b, x, w.t(), beta=0.5, alpha=2)
        return y / y.square().mean(-1, keepdim=True).sqrt() + torch.cat((-y[:, 24:], y[:, :24]), -1)

    report = run(function, of(5, 72), of(48, 72), of(48), parts=4)
    assert streamed(report) == ["cpp+split"]


def test_the_last_part_may_be_shorter(run: Any) -> None:
    """Of 70 steps, 18, 18, 18 and 16."""
    assert streamed(run(layer, of(5, 70), of(48, 70), of(48), parts=4)) == ["cpp+split"]


def test_equal_parts_read_an_infinite_weight_once(run: Any) -> None:
    """Of 130 steps, 65 and 65: 66 and 64 would read two steps twice."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        y = F.linear(x, w)
        return torch.where(torch.isnan(y), -5.0, torch.where(torch.isinf(y), 5.0, y))

    weight = of(48, 130)
    weight[3, 64] = torch.inf
    assert streamed(run(function, of(5, 130), weight, parts=2)) == ["cpp+split"]


def test_depths_that_have_no_such_parts_are_left_to_the_library(run: Any) -> None:
    report = run(layer, of(5, 70), of(48, 70), of(48), parts=48)
    assert not streamed(report) and report.extern_calls


def test_numerics_of_eager_mode(run: Any) -> None:
    report = run(layer, of(1, 70), of(48, 70), of(48), parts=2, numerics="eager")
    assert not streamed(report)
