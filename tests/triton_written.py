"""Kernels of the Triton plugin whose frame is written by hand, under the option `check`: as they are, and
with defects in their text.
"""

from __future__ import annotations

import contextlib
import tempfile
import unittest.mock
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from triton_sorting import ANY_LENGTH

__all__ = ["FLEX_DEFECTS", "faults_of_checked_attention", "faults_of_checked_sorting"]

Sorts = tuple[Callable[..., Any], tuple[int, ...], torch.dtype, Mapping[str, str]]

SORTS: Mapping[str, Sorts] = {
    "counted": (lambda x: torch.sort(x, stable=True), (6, 40), torch.float32, {}),
    "exchanged": (
        lambda x: torch.sort(x, descending=True, stable=True),
        (3, 130),
        torch.bfloat16,
        ANY_LENGTH,
    ),
    "ranked": (lambda x: torch.argsort(x, stable=True), (2, 100), torch.int64, {}),
    "columns apart": (lambda x: torch.topk(x.transpose(0, 1), 5), (4, 3, 50), torch.int32, {}),
}

SORT_DEFECTS = (
    ("counted", "smaller = key[:, None, :] < key", "smaller = key[:, None, :] > key"),
    ("counted", "exists = inside & (at < 40)", "exists = inside & (at < 39)"),
    ("exchanged", "position.to(tl.int64)", "position.to(tl.int64) + (position == 7)"),
    ("ranked", "(other_at[None, :] < at[:, None])", "(other_at[None, :] > at[:, None])"),
    ("columns apart", "stored = exists & (position < 5)", "stored = exists & (position < 4)"),
)
"""A call, what its kernel says, and what it should not say."""

FORWARD, QUERIES, KEYS = "flex_attention", "flex_attention_queries", "flex_attention_keys"
FLEX_DEFECTS = (
    ("plain", "total = total * share + tl.sum", "total = total + tl.sum", FORWARD),
    ("rows of nothing", "tl.where(total == 0.0, 1.0, total)", "total", FORWARD),
    ("soft cap", "d = p * (dp - common)", "d = p * dp", QUERIES),
    ("groups", "h64 = kh64 * group + j % group", "h64 = kh64 * group", KEYS),
    ("relative", "(dk * 0.25)", "(dk * 0.125)", KEYS),
    ("learned", "tl.atomic_add(", "tl.atomic_max(", KEYS),
)
"""A call, what one of its kernels says, and what it should not say."""


@contextlib.contextmanager
def planted(old: str, new: str, name: str) -> Iterator[list[str]]:
    """Kernels of that name with a defect in their text; gives the texts that were changed."""
    from polyfuse_triton import template

    usual, changed = template.load_source, []

    def load(source: Any, settings: Any) -> Any:
        if old and source.name == name and old in source.text:
            changed.append(source.text)
            source = replace(source, text=source.text.replace(old, new))
        return usual(source, settings)

    with unittest.mock.patch.object(template, "load_source", load):
        yield changed


def what_check_says(
    run: Callable[[dict[str, Any]], list[Any]], options: Mapping[str, Any], defect: tuple[str, str, str]
) -> tuple[list[Any], list[str], list[str]]:
    """Results of what is compiled under the option `check`, kernels that were compared, and what was found.

    Args:
        run: compiles with some options and runs it.
    """
    from polyfuse.checking import records, tally
    from polyfuse.compiler.session import forget_sessions

    torch._dynamo.reset()
    forget_sessions()
    records._OPEN.clear()
    tally.begin(forget=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        planted(*defect) as changed,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)
        found = run({"check": "first", "cache_dir": folder, "graph_cache": False, **options})
    if defect[0] and not changed:
        raise AssertionError(f"no kernel says {defect[0]!r}")
    result = tally.result()
    names = [f"{one.backend} {one.kernel}" for one in result.findings]
    skipped = [f"{name} was not compared: {why}" for name, why in result.skipped.items()]
    return found, list(result.kernels), [*names, *skipped]


def faults_of_checked_sorting(backends: str, device: str = "cpu") -> list[str]:
    """Honest sorts that were not compared or were found wrong, defects that were not found, and results that
    are wrong after all.
    """
    from triton_sorting import numbers

    if device == "cpu":
        from triton_interpreted import offer

        offer()
    faults: list[str] = []
    for name, old, new in [*((one, "", "") for one in SORTS), *SORT_DEFECTS]:
        function, size, dtype, options = SORTS[name]
        x = numbers(size, dtype).to(device)

        def run(asked: dict[str, Any], function: Any = function, x: Any = x) -> list[Any]:
            return torch.utils._pytree.tree_leaves(
                torch.compile(function, backend="polyfuse", options=asked)(x)
            )

        results, kernels, found = what_check_says(run, {"backends": backends, **options}, (old, new, "sort"))
        wanted = torch.utils._pytree.tree_leaves(function(x))
        if len(kernels) != 1 or found != (["triton sort"] if old else []):
            faults.append(f"{name} with {new!r}: {len(kernels)} compared, found {found}")
        for got, right in zip(results, wanted, strict=True):
            # of equal numbers that `topk` gives, eager mode's positions are any
            if not torch.equal(got.nan_to_num(7.0), right.nan_to_num(7.0)) and right is wanted[0]:
                faults.append(f"{name} with {new!r} gave {got.tolist()}")
    return faults


def faults_of_checked_attention(names: Sequence[str], defects: bool, device: str = "cpu") -> list[str]:
    """Flexible attention, forward and backward: honest kernels that were not compared or were found wrong,
    and defects that were not found.
    """
    from torch.nn.attention import flex_attention as flex

    from triton_flex import CASES as CALLS
    from triton_flex import move_tables, operands, results_of, runner

    known = contextlib.nullcontext()
    if device == "cpu":
        from triton_interpreted import offer

        offer()
        known = unittest.mock.patch.object(flex, "_validate_device", lambda *_: None)
    else:
        move_tables(device)
    faults: list[str] = []
    planted_in = {case: rest for case, *rest in FLEX_DEFECTS}
    options = {"backends": "interpreted" if device == "cpu" else "triton"}
    for name in names:
        case = CALLS[name]
        given, attend = operands(case, device), runner(case, device)
        old, new, kernel = planted_in[name] if defects else ("", "", "")

        def run(asked: dict[str, Any], attend: Any = attend, given: Any = given, case: Any = case) -> Any:
            compiled = torch.compile(attend, backend="polyfuse", options=asked, dynamic=case.dynamic)
            return results_of(compiled, given, case)

        with known:
            results, kernels, found = what_check_says(run, options, (old, new, kernel))
            wanted = results_of(torch.compile(attend, backend="eager"), given, case)
        by = {f"{plugin} {kernel}" for plugin in ("triton", "cuda_cutlass")} if old else set()
        if len(found) != bool(old) or not by.issuperset(found):
            faults.append(f"{name} with {new!r}: found {found}")
        if len(kernels) < (3 if case.backward else 1):
            faults.append(f"{name}: {len(kernels)} compared")
        for got, right in zip(results, wanted, strict=True):
            near = 3e-2 if case.dtype is torch.bfloat16 else 1e-4
            if not torch.allclose(got.double(), right.double(), near, near):
                faults.append(f"{name} with {new!r}: off by {(got - right).abs().max()}")
    return faults
