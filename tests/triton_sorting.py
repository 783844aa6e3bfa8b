"""Calls that sort, compiled with the Triton backend in the interpreter, beside eager mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = [
    "ANY_LENGTH",
    "CASES",
    "FEW",
    "LEFT",
    "faults_of_few_rows",
    "faults_of_sorting",
    "faults_of_what_is_left",
    "numbers",
]

ANY_LENGTH = {"triton.sorted_row": "1024"}
"""Options with which whole rows are sorted in registers, however long."""

CASES: Mapping[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "row": (lambda x: torch.sort(x, stable=True), (37,)),
    "two": (lambda x: torch.sort(x, stable=True), (5, 2)),
    "a block": (lambda x: torch.sort(x, stable=True), (3, 64)),
    "exchanged": (lambda x: torch.sort(x, stable=True, descending=True), (3, 130)),
    "the smallest of many": (lambda x: torch.topk(x, 3, largest=False)[0] + 0.0, (70,)),
    "descending": (lambda x: torch.sort(x, descending=True, stable=True), (4, 3, 50)),
    "many short rows": (lambda x: torch.sort(x, dim=-1, stable=True), (300, 7)),
    "rows apart": (lambda x: torch.sort(x[:, 1:-2], stable=True), (6, 40)),
    "transposed rows": (lambda x: torch.sort(x.transpose(0, 1), stable=True), (4, 3, 33)),
    "made here": (lambda x: torch.sort(x - 1, stable=True), (20, 6)),
    "argsort": (lambda x: torch.argsort(x, stable=True, descending=True), (9, 21)),
    "topk": (lambda x: torch.topk(x, 5)[0] + 0.0, (9, 33)),
    "smallest": (lambda x: torch.topk(x, 4, largest=False)[0] + 0.0, (2, 16)),
    "a quantile": (lambda x: torch.sort(x)[0][:, 3].relu() + 1, (5, 12)),
}
"""Functions, and the sizes of what they are given."""

FEW: Mapping[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "row": (lambda x: torch.sort(x, stable=True), (333,)),
    "rows": (lambda x: torch.sort(x, stable=True, descending=True), (3, 130)),
    "rows apart": (lambda x: torch.sort(x[:, 1:-2], stable=True), (4, 100)),
    "transposed rows": (lambda x: torch.sort(x.transpose(0, 1), stable=True), (2, 3, 70)),
    "made here": (lambda x: torch.argsort(x - 1, stable=True), (2, 65)),
    "largest": (lambda x: torch.topk(x, 5)[0] + 0, (2, 300)),
    "smallest": (lambda x: torch.topk(x, 70, largest=False)[0] + 0, (90,)),
    "equal": (lambda x: torch.sort(x * 0, stable=True), (1, 200)),
}
"""The same for rows that are too long for registers, but few."""

LEFT: Mapping[str, tuple[Callable[..., Any], tuple[int, ...], torch.dtype]] = {
    "columns": (lambda x: torch.sort(x, 0), (8, 5), torch.float32),
    "too long": (lambda x: torch.sort(x, stable=True), (1, 8193), torch.float32),
    "too many rows": (lambda x: torch.sort(x, stable=True), (4097, 65), torch.float32),
    "too many pairs": (lambda x: torch.sort(x, stable=True), (5, 4096), torch.int32),
    "f64": (lambda x: torch.sort(x, stable=True), (3, 9), torch.float64),
}
"""Calls that the library does, with the type that they are given."""


def numbers(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random numbers, many of them equal, and whatever is special."""
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        found = torch.randint(max(info.min, -5), 6, size).to(dtype)
        special = [info.min, info.max, 0]
    else:
        found = torch.where(torch.rand(size) < 0.5, torch.randn(size), torch.randint(-3, 4, size)).to(dtype)
        special = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0]
    for value in special:
        found[torch.rand(size) < 0.06] = value
    return found


def faults_of_few_rows(dtype: torch.dtype) -> list[str]:
    """What differs from eager mode where all pairs are compared, or was left to the library."""
    return faults_of_sorting(dtype, cases=FEW, options={})


def faults_of_sorting(
    dtype: torch.dtype,
    dynamic: bool = False,
    cases: Mapping[str, tuple[Callable[..., Any], tuple[int, ...]]] = CASES,
    options: Mapping[str, str] = ANY_LENGTH,
) -> list[str]:
    """What differs from eager mode, positions and signs of zeros included, or was left to the library."""
    from polyfuse.compiler.reports.report import last_reports, reset_reports
    from triton_interpreted import offer

    def every(given: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return {name: function(given[name]) for name, (function, _) in cases.items()}

    offer()
    faults: list[str] = []
    torch._dynamo.reset()
    reset_reports()
    asked = {"backends": "interpreted", **options}
    compiled = torch.compile(every, backend="polyfuse", options=asked, dynamic=dynamic)
    for more in (0, 3) if dynamic else (0,):
        sizes = {name: (size[0] + more * (len(size) > 1), *size[1:]) for name, (_, size) in cases.items()}
        given = {name: numbers(size, dtype) for name, size in sizes.items()}
        for x in given.values() if dynamic else ():
            torch._dynamo.mark_static(x, x.dim() - 1)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always", UserWarning)
            found, wanted = compiled(given), every(given)
        faults += [str(w.message) for w in seen if "polyfuse" in str(w.message)]
        for name, x in given.items():
            pair = map(torch.utils._pytree.tree_leaves, (found[name], wanted[name]))
            for got, right in zip(*pair, strict=True):
                if got.stride() != right.stride() or not _same(got, right):
                    faults.append(f"{name}: {x.tolist()} gave {got.tolist()}, not {right.tolist()}")
    calls = [call for report in last_reports() for call in report.calls]
    if any(call.startswith("aten.") for call in calls):
        faults.append(f"the library is called: {calls}")
    return faults


def faults_of_what_is_left() -> list[str]:
    """What is wrong with calls that the library should do."""
    from polyfuse.compiler.reports.report import last_reports, reset_reports
    from triton_interpreted import offer

    offer()
    faults: list[str] = []
    for name, (function, size, dtype) in LEFT.items():
        torch._dynamo.reset()
        reset_reports()
        x = numbers(size, dtype)
        found = torch.compile(function, backend="polyfuse", options={"backends": "interpreted"})(x)
        for got, right in zip(found, function(x), strict=True):
            if not torch.equal(got.nan_to_num(7), right.nan_to_num(7)):
                faults.append(f"{name}: {got.tolist()}, not {right.tolist()}")
        calls = [call for report in last_reports() for call in report.calls]
        if not any(call.startswith("aten.sort") for call in calls):
            faults.append(f"{name}: the library is not called: {calls}")
    return faults


def _same(got: torch.Tensor, right: torch.Tensor) -> bool:
    if not torch.equal(got.isnan(), right.isnan()):
        return False
    known = ~right.isnan()
    signs = torch.equal(torch.signbit(got[known]), torch.signbit(right[known]))
    return signs and torch.equal(got[known], right[known])
