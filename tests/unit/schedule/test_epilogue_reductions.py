"""Reductions over a product's rows or columns are begun in its kernel, where a backend can do that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from autotuning import reasons, with_times
from gemm_kernels import OPTIONS, kernels_of
from polyfuse.base.errors import UnsupportedError, VerifyError
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Node, Scatter
from polyfuse.ir.ops import GROUP_MODES
from polyfuse.ir.text.parse import parse
from polyfuse.ir.text.print import text
from polyfuse.ir.verifier.verify import verify_kernel
from polyfuse.plugin import Claim, Config, No, Source, Yes
from polyfuse.reference.backend import InterpreterBackend

WIDTH = 4
R = torch.randn
X, W, B = R(3, 10, 16), R(22, 16), R(22)


@pytest.fixture
def folding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter combines groups of results."""
    monkeypatch.setattr(InterpreterBackend, "epilogue_reduction_width", lambda *_: WIDTH)


def folds(kernels: list[Kernel]) -> list[str]:
    """The stores of kernels that combine results."""
    return [
        f"{stmt.mode} {stmt.index}"
        for kernel in kernels
        for section in kernel.sections
        for stmt in section.body
        if stmt.op == "store" and stmt.mode in GROUP_MODES
    ]


def activation(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = F.gelu(F.linear(x, w, b))
    return h, h.abs().amax(-1)


def gradient(x: torch.Tensor, w: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    g = (x @ w) * torch.sigmoid(z)
    return g, g.sum(0)


def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = F.linear(x, w)
    return h, h.sum((0, 1)), h.square().sum(-1)


CASES: dict[str, tuple[Any, tuple[torch.Tensor, ...], list[str]]] = {
    "largest of a row": (activation, (X, W, B), ["group_max 6*p0 + (p1 // 4)"]),
    "smallest, and no results": (
        lambda x, w: (x @ w).amin(-1),
        (R(10, 16), R(16, 22)),
        ["group_min 6*p0 + (p1 // 4)"],
    ),
    "sum of columns": (gradient, (R(11, 16), R(16, 22), R(11, 22)), ["group_sum p1 + 22*(p0 // 4)"]),
    "rows of two axes": (both, (X, W), ["group_sum p1 + 22*(p0 // 4)", "group_sum 6*p0 + (p1 // 4)"]),
    "rows of two axes, with what is done there": (
        lambda x, w, b: (*activation(x, w, b), F.gelu(F.linear(x, w, b)).sum((0, 1))),
        (X, W, B),
        ["group_max 6*p0 + (p1 // 4)", "group_sum p1 + 22*(p0 // 4)"],
    ),
    "mean of half floats": (
        lambda x, w: (x @ w).mean(-1),
        (R(10, 16).bfloat16(), R(16, 24).bfloat16()),
        ["group_sum 6*p0 + (p1 // 4)"],
    ),
}

WHOLE: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "of everything": (lambda x, w: (x @ w).sum(), (R(10, 16), R(16, 22))),
    "of a batch": (lambda a, b: torch.bmm(a, b).sum(-1), (R(3, 10, 16), R(3, 16, 22))),
    "of parts of a row": (lambda x, w: (x @ w).view(10, 2, 12).sum(-1), (R(10, 16), R(16, 24))),
    "positions": (lambda x, w: (x @ w).argmax(-1), (R(10, 16), R(16, 22))),
    "of what is not computed with the product": (
        lambda x, w: ((y := x @ w) - y.sum(-1, keepdim=True).exp()).amax(0),
        (R(10, 16) * 0.01, R(16, 22)),
    ),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", (False, True))
def test_groups_are_combined_with_the_matmul(folding, name, dynamic):
    function, args, expected = CASES[name]
    kernels = kernels_of(function, *args, dynamic=dynamic)
    found = folds(kernels[:1])
    assert len(found) == len(expected) and not folds(kernels[1:])
    assert dynamic or found == expected
    for kernel in kernels:
        verify_kernel(kernel)
        assert parse(text(kernel)) == kernel


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", WHOLE)
def test_other_reductions_stay_whole(folding, name):
    function, args = WHOLE[name]
    found = folds(kernels_of(function, *args))
    assert found == (["group_sum 6*p0 + (p1 // 4)"] if name.startswith("of what") else [])


def test_nobody_is_asked_who_does_not_say_so():
    assert not folds(kernels_of(*_flat("largest of a row")))


def test_without_fusion_reductions_stay_whole(folding, monkeypatch):
    monkeypatch.setitem(OPTIONS, "fusion", False)
    assert not folds(kernels_of(*_flat("sum of columns")))


def _flat(name: str) -> tuple[Any, ...]:
    function, args, _ = CASES[name]
    return function, *args


@pytest.mark.quick(1)
@pytest.mark.parametrize(("milliseconds", "winner"), ((1.0, "interpreter+reductions"), (5.0, "interpreter")))
def test_it_is_timed_against_the_matmul_alone(folding, monkeypatch, tmp_path, milliseconds, winner):
    monkeypatch.setattr(InterpreterBackend, "autotunes_gemm", True)
    times = {"library": 8.0, "interpreter": 3.0, "interpreter+reductions": milliseconds}
    run = with_times(monkeypatch, tmp_path, times)
    report = run(*_flat("largest of a row"))
    assert [d.second for d in report.decisions if d.kind == "choice"] == [winner]
    split = [d for d in report.decisions if d.kind == "split"]
    assert len(split) == (winner == "interpreter+reductions")
    again = run(*_flat("largest of a row"))
    assert [d.second for d in again.decisions if d.kind == "choice"] == [winner]


@pytest.mark.slow
def test_what_does_well_alone_is_tried_with_reductions_too(folding, monkeypatch, tmp_path):
    def emit(self: Any, kernel: Kernel, config: Config | None = None) -> Source:
        return replace(plain(self, kernel), meta=str(config or ""), key="")

    plain = InterpreterBackend.emit
    monkeypatch.setattr(InterpreterBackend, "autotunes_gemm", True)
    monkeypatch.setattr(InterpreterBackend, "configs", lambda *_: tuple(Config.of(rows=n) for n in (1, 2, 3)))
    monkeypatch.setattr(InterpreterBackend, "emit", emit)
    times = {"library": 8.0, "interpreter rows=3": 3.0, "interpreter+reductions rows=3": 2.0}
    report = with_times(monkeypatch, tmp_path, times)(*_flat("largest of a row"))
    (found,) = (d for d in report.decisions if d.kind == "choice")
    assert found.second == "interpreter+reductions rows=3"


def test_a_refusal_has_its_reason(monkeypatch, tmp_path):
    def width(self: Any, product: Node, kind: str, along: str) -> int:
        return WIDTH if along == "columns" else 0

    def claims(self: Any, node: Node) -> Claim:
        return No("it knows no maximum") if isinstance(node, Scatter) and "max" in node.mode else Yes()

    monkeypatch.setattr(InterpreterBackend, "autotunes_gemm", True)
    monkeypatch.setattr(InterpreterBackend, "epilogue_reduction_width", width)
    monkeypatch.setattr(InterpreterBackend, "claims", claims)
    run = with_times(monkeypatch, tmp_path, {"library": 1.0})
    assert reasons(run(*_flat("largest of a row")))["interpreter"] == "it knows no maximum"
    found = reasons(run(*_flat("sum of columns")))["interpreter"]
    assert found == "it combines no results of a GEMM along its rows"


REASONS = {
    "of a batch": "not over all rows or all columns",
    "of parts of a row": "not over all rows or all columns",
    "positions": "argmax of f32 is not begun in a GEMM",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REASONS)
def test_what_is_not_begun_has_its_reason(folding, monkeypatch, tmp_path, name):
    monkeypatch.setattr(InterpreterBackend, "autotunes_gemm", True)
    run = with_times(monkeypatch, tmp_path, {"library": 1.0})
    function, args = WHOLE[name]
    assert REASONS[name] in reasons(run(function, *args))["interpreter"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("tuned", (False, True))
def test_a_kernel_may_be_refused_as_a_whole(folding, monkeypatch, tmp_path, tuned):
    def configs(self: Any, kernel: Kernel) -> tuple[()]:
        if folds([kernel]):
            raise UnsupportedError("its tiles are too small", "")
        return ()

    monkeypatch.setattr(InterpreterBackend, "configs", configs)
    if not tuned:
        assert not folds(kernels_of(*_flat("largest of a row")))
        return
    monkeypatch.setattr(InterpreterBackend, "autotunes_gemm", True)
    times = {"library": 8.0, "interpreter": 3.0, "interpreter+reductions": 1.0}
    run = with_times(monkeypatch, tmp_path, times)
    report = run(*_flat("largest of a row"))
    assert [d.second for d in report.decisions if d.kind == "choice"] == ["interpreter"]
    assert "its tiles are too small" in {d.reason for d in report.decisions if d.kind == "declined"}


FOLD = """kernel fold on cpu {
  numerics fast
  axes i0{3} ~ 3, i1{5} ~ 5
  in in0: f32[15]
  out out0: f32[9]
  once {
    v0 = load f32 in0[5*i0 + i1]
    store f32 group_max out0[3*i0 + (i1 // 2)] = v0
  }
}"""


def test_what_was_there_before_does_not_count():
    values = R(3, 5)
    values[1, 2] = torch.nan
    values[2, 4] = -torch.inf
    found = torch.full((3, 3), 9.0)
    run_kernel(parse(FOLD), [values, found])
    expected = torch.cat([values, values[:, 4:]], 1).view(3, 3, 2).amax(-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    for mode, small in (("group_min", values.nan_to_num().amin()), ("group_sum", values.nan_to_num().sum())):
        run_kernel(parse(FOLD.replace("group_max", mode)), [values.nan_to_num(), found])
        torch.testing.assert_close(found.amin() if mode == "group_min" else found.sum(), small)


def test_a_kernel_does_not_read_what_it_combines():
    verify_kernel(parse(FOLD))
    line = "    store f32 group_max"
    broken = FOLD.replace(line, f"    v1 = load f32 out0[i0]\n{line}")
    with pytest.raises(VerifyError, match="read before"):
        verify_kernel(parse(broken))
    broken = FOLD.replace(line, f"    store f32 set out0[i0] = v0\n{line}")
    with pytest.raises(VerifyError, match="combined from nothing"):
        verify_kernel(parse(broken))
