"""Flexible attention in tiles on the CPU: its results, what it does not read, and what is left to others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from polyfuse import aot
from polyfuse.compiler.session import forget_sessions
from polyfuse_cpp.attention.flex import FlexKernel
from requirements import needs_pairs

pytestmark = needs_pairs

BF16 = torch.bfloat16
BIAS = torch.linspace(-1, 1, 8)
DOCUMENT = torch.arange(512) // 70


@dataclass(frozen=True)
class Case:
    """One call, with heads of 64 numbers and 2 heads of keys."""

    heads: int = 2
    queries: int = 200
    keys: int = 300
    width: int = 64
    batch: int = 1
    key_batch: int = 1
    score: Callable[..., Any] | None = None
    mask: Callable[..., Any] | None = None
    block: int = 64
    mask_heads: int | None = None
    dtype: torch.dtype = torch.float32


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q + 100 >= k


def by_distance(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + (q - k) * BIAS[h] * 0.1


CASES = {
    "plain": Case(dtype=torch.float16),
    "causal, shared heads": Case(heads=4, mask=causal, dtype=BF16),
    "bias by head and distance": Case(batch=2, key_batch=2, score=by_distance),
    "documents": Case(mask=lambda b, h, q, k: DOCUMENT[q] == DOCUMENT[k], dtype=torch.float16),
    "rows without keys": Case(mask=lambda b, h, q, k: (q >= k) & (q > 70) & (k % 3 != q % 2)),
    "soft cap, masks by head": Case(
        score=lambda s, b, h, q, k: torch.tanh(s / 2) * 2,
        mask=lambda b, h, q, k: (q < 100 + h) & (k > h * 70),
        mask_heads=2,
    ),
    "one query, shared heads": Case(heads=6, queries=1, mask=lambda b, h, q, k: k > 130, dtype=BF16),
    "one query, masks by head": Case(heads=4, queries=1, mask=lambda b, h, q, k: k > h * 70, mask_heads=4),
    "seven queries, a function": Case(
        heads=4, queries=7, width=40, keys=70, score=lambda s, b, h, q, k: s * (q + 1) + BIAS[k % 8]
    ),
    "shared keys": Case(batch=2, key_batch=1, width=80, keys=77, mask=causal, dtype=BF16),
}


def operands(case: Case) -> list[torch.Tensor]:
    sizes = ((case.batch, case.heads, case.queries), *((case.key_batch, 2, case.keys),) * 2)
    return [torch.randn(*size, case.width).to(case.dtype) for size in sizes]


def attention(case: Case) -> Callable[..., Any]:
    mask = None
    if case.mask is not None:
        batch = case.batch if case.batch > case.key_batch else None
        sizes = (batch, case.mask_heads, case.queries, case.keys)
        mask = create_block_mask(case.mask, *sizes, device="cpu", BLOCK_SIZE=case.block)

    def function(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(
            q, k, v, score_mod=case.score, block_mask=mask, enable_gqa=True, return_lse=True
        )

    return function


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[FlexKernel]:
    """The kernels that are called."""
    monkeypatch.setenv("POLYFUSE_GRAPH_CACHE", "0")
    forget_sessions()
    torch.compiler.reset()
    found: list[FlexKernel] = []
    call = FlexKernel.__call__

    def noted(self: FlexKernel, *given: Any) -> None:
        found.append(self)
        call(self, *given)

    monkeypatch.setattr(FlexKernel, "__call__", noted)
    return found


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    dynamic = options.pop("dynamic", False)
    return torch.compile(function, backend="polyfuse", dynamic=dynamic, options={"strict": True, **options})


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", CASES)
def test_beside_float64(name: str, calls: list[FlexKernel]) -> None:
    case = CASES[name]
    given, function = operands(case), attention(case)
    with torch.no_grad():
        exact, sums = function(*(t.double() for t in given))
        eager, _ = function(*given)
        found, found_sums = compiled(function)(*given)
    assert len(calls) == 1
    assert (found.dtype, found.stride()) == (eager.dtype, eager.stride())
    bound = 1e-5 if case.dtype is torch.float32 else 2 * torch.finfo(case.dtype).eps
    torch.testing.assert_close(found.double(), exact, rtol=bound, atol=bound)
    torch.testing.assert_close(found_sums.double(), sums.double(), rtol=1e-5, atol=1e-4)


def test_blocks_that_a_mask_leaves_out_are_not_read(calls: list[FlexKernel]) -> None:
    case = Case(mask=lambda b, h, q, k: (k < 64) | (k >= 256))
    (q, k, v), function = operands(case), attention(case)
    with torch.no_grad():
        wanted = compiled(function)(q, k, v)[0]
        hidden = k.clone(), v.clone()
        for each in hidden:
            each[:, :, 64:256] = 0.0
        hidden[0][:, :, 64:256] = math.nan
        found = compiled(function)(q, *hidden)[0]
    assert len(calls) == 2 and torch.equal(found, wanted)


@pytest.mark.slow
def test_what_a_check_expects(calls: list[FlexKernel]) -> None:
    case = CASES["soft cap, masks by head"]
    with torch.no_grad():
        compiled(attention(case), check="first")(*operands(case))
    assert calls


def test_values_of_another_width_are_spelled_out(calls: list[FlexKernel]) -> None:
    q, k, v = (torch.randn(1, 2, 40, width) for width in (32, 32, 16))
    with torch.no_grad():
        found = compiled(flex_attention)(q, k, v)
    torch.testing.assert_close(found, flex_attention(q, k, v))
    assert not calls


def test_a_kernel_serves_lengths_that_vary(calls: list[FlexKernel]) -> None:
    function = compiled(lambda q, k, v: flex_attention(q, k, v, score_mod=CASES["plain"].score), dynamic=None)
    for length in (70, 41):
        given = [torch.randn(1, 2, length, 32) for _ in range(3)]
        for each in given:
            torch._dynamo.mark_dynamic(each, 2)
        with torch.no_grad():
            torch.testing.assert_close(function(*given), flex_attention(*given), rtol=1e-5, atol=1e-5)
    assert len(calls) == 2


@pytest.mark.parametrize("native", [False, True])
def test_packages(tmp_path: Path, native: bool) -> None:
    """A package holds the kernel; one that runs without Python has it spelled out."""

    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return flex_attention(q, k, v, score_mod=by_distance)

    operands = tuple(torch.randn(1, 2, 64, 32) for _ in range(3))
    model = Attention().eval()
    packed = aot.load(aot.package(model, operands, path=tmp_path / "model.pf", native=native))
    torch.testing.assert_close(packed(*operands), model(*operands))
