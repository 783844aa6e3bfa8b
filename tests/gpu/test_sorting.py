"""Rows sorted in registers, on a real device."""

from __future__ import annotations

import pytest
import torch

from polyfuse.compiler.reports.report import last_reports, reset_reports
from triton_sorting import ANY_LENGTH, CASES, FEW, numbers

pytestmark = pytest.mark.gpu


def agrees(got: torch.Tensor, right: torch.Tensor) -> bool:
    known = ~right.isnan()
    same = torch.equal(got.isnan(), right.isnan()) and torch.equal(got[known], right[known])
    return same and torch.equal(torch.signbit(got[known]), torch.signbit(right[known]))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.uint8], ids=str
)
@pytest.mark.parametrize("name", CASES)
def test_beside_eager_mode(name: str, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    reset_reports()
    function, size = CASES[name]
    x = numbers(size, dtype).cuda()
    found = torch.compile(function, backend="polyfuse", options=ANY_LENGTH)(x)
    for got, right in zip(*map(torch.utils._pytree.tree_leaves, (found, function(x))), strict=True):
        assert got.stride() == right.stride() and agrees(got, right)
    assert not any(call.startswith("aten.") for report in last_reports() for call in report.calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8], ids=str)
def test_few_long_rows(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    reset_reports()
    given = {name: numbers(size, dtype).cuda() for name, (_, size) in FEW.items()}
    given["long"] = numbers((2, 5000), dtype).cuda()

    def every(x: dict[str, torch.Tensor]) -> dict[str, object]:
        found: dict[str, object] = {name: function(x[name]) for name, (function, _) in FEW.items()}
        return {**found, "long": torch.sort(x["long"], stable=True)}

    found = torch.compile(every, backend="polyfuse")(given)
    for got, right in zip(*map(torch.utils._pytree.tree_leaves, (found, every(given))), strict=True):
        assert got.stride() == right.stride() and agrees(got, right)
    assert not any(call.startswith("aten.") for report in last_reports() for call in report.calls)


@pytest.mark.parametrize("length", [65, 700, 1024])
@pytest.mark.parametrize("descending", [False, True])
def test_longer_rows(length: int, descending: bool) -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, positions = torch.sort(x + 1, stable=True, descending=descending)
        return values, positions

    x = numbers((33, length), torch.float32).cuda()
    found = torch.compile(function, backend="polyfuse", options=ANY_LENGTH)(x)
    for got, right in zip(found, function(x), strict=True):
        assert agrees(got, right)


def test_recorded() -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> torch.Tensor:
        weights, experts = torch.topk(torch.softmax(x, -1), 2)
        return weights / weights.sum(-1, keepdim=True) + experts

    compiled = torch.compile(function, backend="polyfuse", mode="reduce-overhead")
    for _ in range(4):
        x = torch.randn(100, 8, device="cuda")
        torch.testing.assert_close(compiled(x), function(x))
