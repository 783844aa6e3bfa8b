"""Calls of flexible attention, compiled with the Triton backend in the interpreter, beside eager mode."""

from __future__ import annotations

import unittest.mock
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex

__all__ = [
    "CASES",
    "REFUSED",
    "Case",
    "flex_faults",
    "flex_sources",
    "operands",
    "move_tables",
    "refused_faults",
    "results_of",
    "runner",
]

_BIAS = torch.linspace(-1, 1, 16)
_TABLE = torch.linspace(-1, 1, 16).requires_grad_()
_DOCUMENT = torch.arange(4096) // 50
_PAGE = 16
_PAGES = torch.tensor([3, 0, -1, 5, 1, -1, 2, 4])
"""Which page of a sequence lies in each page of a cache; -1: another one's."""


def _causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


@dataclass(frozen=True)
class Case:
    """One call; sizes as in `flex_attention`."""

    batch: int = 1
    heads: int = 2
    queries: int = 128
    keys: int = 128
    depth: int = 16
    values: int = 0
    key_heads: int = 0
    key_batch: int = 0
    score: Callable[..., Any] | None = None
    mask: Callable[..., Any] | None = None
    block: int | tuple[int, int] = 64
    mask_batch: int | None = None
    mask_heads: int | None = None
    dtype: torch.dtype = torch.float32
    backward: bool = True
    dynamic: bool = False
    sums: bool = False
    """Whether the logarithms of sums are a result too."""
    transposed: bool = False
    """Whether heads lie inside positions in memory."""
    learned: bool = False
    """Whether `_TABLE`, which the score's function reads, has a gradient."""


CASES: Mapping[str, Case] = {
    "plain": Case(),
    "causal": Case(mask=_causal),
    "relative": Case(score=lambda s, b, h, q, k: s + (q - k) * _BIAS[h] * 0.1),
    "soft cap": Case(score=lambda s, b, h, q, k: torch.tanh(s / 2) * 2, mask=_causal),
    "documents": Case(mask=lambda b, h, q, k: (q >= k) & (_DOCUMENT[q] == _DOCUMENT[k])),
    "groups": Case(heads=4, key_heads=2, mask=_causal),
    "odd": Case(queries=100, keys=77, depth=20, mask=lambda b, h, q, k: q % 3 != k % 2),
    "odd without mask": Case(batch=2, queries=100, keys=77, depth=20, values=40),
    "shared keys": Case(batch=2, key_batch=1, mask=_causal),
    "paged cache": Case(
        mask=lambda b, h, q, k: (_PAGES[k // _PAGE] >= 0) & (q >= _PAGES[k // _PAGE] * _PAGE + k % _PAGE),
        block=32,
    ),
    "rows of nothing": Case(mask=lambda b, h, q, k: (q >= k) & (q > 20)),
    "bf16": Case(queries=256, keys=256, depth=64, block=128, mask=_causal, dtype=torch.bfloat16),
    "inference": Case(mask=_causal, backward=False),
    "learned": Case(score=lambda s, b, h, q, k: s + (q - k) * _TABLE[h] * 0.1, learned=True, mask=_causal),
    "learned by position": Case(
        queries=100, score=lambda s, b, h, q, k: s * _TABLE[q % 8] + _TABLE[(q - k) % 16], learned=True
    ),
    "dynamic": Case(queries=100, keys=100, backward=False, dynamic=True),
    "dynamic backward": Case(batch=2, queries=100, keys=80, dynamic=True, mask=_causal),
    "masks by head": Case(
        batch=2, mask=lambda b, h, q, k: (q + b * 64 >= k) & (q < 100 + h), mask_batch=2, mask_heads=2
    ),
    "oblong blocks": Case(mask=_causal, block=(128, 32)),
    "sums": Case(mask=_causal, sums=True),
    "transposed": Case(transposed=True, queries=70, score=lambda s, b, h, q, k: s * (h + 1)),
}


REFUSED: Mapping[str, Case] = {
    "deep": Case(depth=272, mask=_causal),
    "small blocks": Case(mask=_causal, block=8),
    "double": Case(dtype=torch.float64),
    "dynamic": Case(depth=272, queries=100, keys=80, dynamic=True),
}
"""Calls that the kernels cannot do."""


def move_tables(device: str) -> None:
    """Put what the functions read on a device."""
    global _BIAS, _TABLE, _DOCUMENT, _PAGES
    _BIAS, _DOCUMENT, _PAGES = _BIAS.to(device), _DOCUMENT.to(device), _PAGES.to(device)
    _TABLE = _TABLE.detach().to(device).requires_grad_()


def operands(case: Case, device: str = "cpu") -> list[torch.Tensor]:
    """Queries, keys and values."""
    key_batch, key_heads = case.key_batch or case.batch, case.key_heads or case.heads
    shapes = (
        (case.batch, case.heads, case.queries, case.depth),
        (key_batch, key_heads, case.keys, case.depth),
        (key_batch, key_heads, case.keys, case.values or case.depth),
    )
    found = [torch.randn(shape, dtype=case.dtype, device=device) for shape in shapes]
    return [t.transpose(1, 2).contiguous().transpose(1, 2) for t in found] if case.transposed else found


def runner(case: Case, device: str = "cpu") -> Callable[..., Any]:
    """The call as a function of operands."""
    mask = None
    if case.mask is not None:
        batch = case.batch if case.key_batch else case.mask_batch
        sizes = (batch, case.mask_heads, case.queries, case.keys)
        mask = flex.create_block_mask(case.mask, *sizes, device=device, BLOCK_SIZE=case.block)

    def run(q: Any, k: Any, v: Any) -> Any:
        more = {"return_lse": True} if case.sums else {}
        found = flex.flex_attention(
            q, k, v, score_mod=case.score, block_mask=mask, enable_gqa=bool(case.key_heads), **more
        )
        return found[0] + found[1][..., None] if case.sums else found

    return run


def results_of(function: Callable[..., Any], given: list[torch.Tensor], case: Case) -> list[torch.Tensor]:
    inputs = [t.detach().clone().requires_grad_(case.backward) for t in given]
    found = function(*inputs)
    if not case.backward:
        return [found]
    _TABLE.grad = None
    inputs += [_TABLE] * case.learned
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(3)).to(found)
    (found * weights).sum().backward()
    return [found.detach(), *(t.grad for t in inputs if t.grad is not None)]


def flex_faults(name: str) -> list[str]:
    """What differs from eager mode, or was left to it."""
    return _run(name)[0]


def flex_sources(name: str) -> list[tuple[str, str]]:
    """The text and meta of the kernels of a case, which are launched for nothing."""
    from triton_interpreted import InterpretedTriton

    with unittest.mock.patch.object(InterpretedTriton, "load", _idle):
        return [(source.text, source.meta) for source in _run(name)[1]]


def _idle(self: Any, folder: Any) -> dict[str, Callable[..., None]]:
    return {path.stem: lambda *_: None for path in folder.glob("*.py")}


def refused_faults(name: str) -> list[str]:
    """What is wrong where a call is left to eager mode: the call alone must be, and nothing around it."""
    from polyfuse.compiler.reports.report import last_reports, reset_reports
    from triton_interpreted import offer

    offer()
    torch._dynamo.reset()
    reset_reports()
    case = REFUSED[name]
    given, attend = operands(case), runner(case)

    def function(q: Any, k: Any, v: Any) -> Any:
        return torch.relu(attend(q * 2, k, v) + 1)

    options = {"backends": "interpreted"}
    compiled = torch.compile(function, backend="polyfuse", options=options, dynamic=case.dynamic)
    with (
        unittest.mock.patch.object(flex, "_validate_device", lambda *_: None),
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")
        found = results_of(compiled, given, case)
        wanted = results_of(torch.compile(function, backend="eager"), given, case)
    faults = [str(w.message) for w in seen if "polyfuse" in str(w.message)]
    for position, (got, right) in enumerate(zip(found, wanted, strict=True)):
        if not torch.allclose(got, right, 1e-5, 1e-5):
            faults.append(f"result {position} is off by {(got - right).abs().max()}")
    left = [[op for op, _ in report.fallbacks] for report in last_reports()]
    if left != [["higher_order.flex_attention"], ["higher_order.flex_attention_backward"]]:
        faults.append(f"left to eager mode: {left}")
    if not all(report.kernels for report in last_reports()):
        faults.append("a graph has no kernels")
    return faults


def _run(name: str) -> tuple[list[str], list[Any]]:
    from polyfuse_triton import template
    from triton_interpreted import offer

    offer()
    torch._dynamo.reset()
    case, made = CASES[name], []
    given, function = operands(case), runner(case)
    plain = template.load_source

    def noted(source: Any, settings: Any) -> Any:
        made.append(source)
        return plain(source, settings)

    options = {"backends": "interpreted"}
    compiled = torch.compile(function, backend="polyfuse", options=options, dynamic=case.dynamic)
    with (
        unittest.mock.patch.object(flex, "_validate_device", lambda *_: None),
        unittest.mock.patch.object(template, "load_source", noted),
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")
        found = results_of(compiled, given, case)
        wanted = results_of(torch.compile(function, backend="eager"), given, case)
    faults = [f"{name}: {w.message}" for w in seen if "polyfuse" in str(w.message)]
    kernels = 3 if case.backward else 1
    if len(made) != kernels:
        faults.append(f"{name}: {len(made)} kernels were made, not {kernels}")
    near = 2e-2 if case.dtype is torch.bfloat16 else 1e-5
    for position, (got, right) in enumerate(zip(found, wanted, strict=True)):
        # gradients of a table are long sums: what they may be off by grows with them
        limit = near * max(1.0, right.abs().max().item())
        if not torch.allclose(got.double(), right.double(), near, limit, equal_nan=True):
            faults.append(
                f"{name}: result {position} is off by {(got.double() - right.double()).abs().max()}"
            )
    return faults, made
