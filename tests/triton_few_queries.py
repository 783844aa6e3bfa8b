"""Attention of few queries, compiled with the Triton backend in the interpreter, beside eager mode."""

from __future__ import annotations

import contextlib
import unittest.mock
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

Operands = Mapping[str, Any]


def operands(
    batch: int = 2,
    heads: int = 4,
    queries: int = 1,
    keys: int = 300,
    key_heads: int = 2,
    depth: int = 32,
    dtype: torch.dtype = torch.bfloat16,
    device: str | None = None,
    mask: str = "",
) -> dict[str, Any]:
    """Queries, keys, values and a mask.

    Args:
        device: None: the one that a context names.
        mask: `"seen"`: the first keys alone, for all; `"window"`: some in the middle, for each sequence
            others; `"heads"`: a bias for each head and query; `"alibi"`: for each head another factor of the
            distance; `"none"`: a sequence of which no key counts.
    """
    make = lambda *size: torch.randn(*size, device=device).to(dtype)  # noqa: E731
    q = make(batch, queries, heads, depth).transpose(1, 2)
    k, v = (make(batch, key_heads, keys, depth) for _ in range(2))
    position = torch.arange(keys, device=device)
    first = torch.arange(batch, device=device)[:, None, None, None] * 70
    found = {
        "seen": lambda: (position < 0.6 * keys)[None, None, None],
        "window": lambda: (position >= first + 33) & (position < first + 180),
        "heads": lambda: make(1, heads, queries, keys),
        "alibi": lambda: (
            (position - keys + 1) * 0.5 ** torch.arange(1, heads + 1, device=device)[:, None, None]
        )[None].to(dtype),
        "none": lambda: (position < keys) & (first > 0),
    }
    return {"q": q, "k": k, "v": v, "mask": found[mask]() if mask else None}


def _attend(given: Operands) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        given["q"],
        given["k"],
        given["v"],
        given["mask"],
        scale=given.get("scale"),
        enable_gqa=given["q"].shape[1] != given["k"].shape[1],
    )


def _changed(given: dict[str, Any], **more: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    return {**given, **{name: change(given[name]) for name, change in more.items()}}


def _with(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """The same, with a number somewhere."""

    def change(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[0, -1, x.shape[2] // 2, 3] = value
        return x

    return change


def _apart(x: torch.Tensor) -> torch.Tensor:
    """The same numbers with heads inside positions, in lines with others between."""
    whole = torch.zeros(x.shape[0], x.shape[2], x.shape[1], x.shape[3] + 8, dtype=x.dtype, device=x.device)
    whole[..., :-8] = x.transpose(1, 2)
    return whole[..., :-8].transpose(1, 2)


def _misaligned(x: torch.Tensor) -> torch.Tensor:
    """The same numbers in lines that begin anywhere."""
    whole = torch.zeros(*x.shape[:-1], x.shape[3] + 3, dtype=x.dtype, device=x.device)
    whole[..., 1:-2] = x
    return whole[..., 1:-2]


CASES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "plain": operands,
    "parts": lambda: operands(keys=600, mask="seen"),
    "parts of whole tiles": lambda: operands(keys=512),
    "a window": lambda: operands(keys=520, mask="window"),
    "a bias": lambda: operands(queries=3, mask="heads", keys=270),
    "alibi": lambda: operands(keys=520, mask="alibi"),
    "several queries": lambda: operands(queries=5, mask="seen", keys=70),
    "one head": lambda: operands(heads=1, key_heads=1, keys=1),
    "a head for each": lambda: operands(heads=3, key_heads=3, keys=65, batch=1),
    "an odd depth": lambda: operands(depth=40, keys=130),
    "f16": lambda: operands(dtype=torch.float16, mask="seen"),
    "a scale": lambda: {**operands(), "scale": 0.3},
    "a negative scale": lambda: {**operands(keys=512), "scale": -0.2},
    "rows apart": lambda: _changed(operands(mask="seen"), q=_apart, k=_apart, v=_apart),
    "a sequence without keys": lambda: operands(keys=512, mask="none"),
    "no keys in one part": lambda: operands(mask="none"),
    "nan": lambda: _changed(operands(), k=_with(float("nan"))),
    "infinite": lambda: _changed(operands(keys=512), v=_with(float("inf"))),
}
"""What is given to attention."""

MEASURED = (
    *("parts", "a window", "alibi", "f16", "rows apart"),
    *("a sequence without keys", "no keys in one part"),
)
"""Those of one query with a mask, which are taken from the library without being asked for."""

LEFT: Mapping[str, Callable[[], dict[str, Any]]] = {
    "many queries": lambda: operands(queries=33, keys=64),
    "f32": lambda: operands(dtype=torch.float32),
    "long rows": lambda: operands(depth=264, keys=40),
    "lines anywhere": lambda: _changed(operands(keys=40), k=_misaligned, v=_misaligned),
}
"""What the library computes."""


@contextlib.contextmanager
def every_form() -> Iterator[None]:
    """Calls that the library computes since nobody measured them are ours, too."""
    from polyfuse_triton.attention import lowering
    from polyfuse_triton.attention.tiles import is_possible

    with unittest.mock.patch.object(lowering, "is_faster", is_possible):
        yield


@every_form()
def faults(cases: Mapping[str, Callable[[], dict[str, Any]]] = CASES, device: str = "cpu") -> list[str]:
    """What is further from float64 than eager mode is, or was left to the library."""
    from polyfuse.compiler.reports.report import last_reports, reset_reports

    with torch.device(device):
        given = {name: make() for name, make in cases.items()}

    def every() -> dict[str, torch.Tensor]:
        return {name: _attend(of) for name, of in given.items()}

    torch._dynamo.reset()
    reset_reports()
    options = {"backends": "interpreted"} if device == "cpu" else {}
    with warnings.catch_warnings(record=True) as seen, torch.no_grad():
        warnings.simplefilter("always", UserWarning)
        found, eager = torch.compile(every, backend="polyfuse", options=options)(), every()
    wrong = [str(w.message) for w in seen if "polyfuse" in str(w.message)]
    for name, of in given.items():
        exact = {
            key: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for key, x in of.items()
        }
        truth = _attend(exact)
        got, usual = (r[name].double() for r in (found, eager))
        strides = [
            [step for step, n in zip(r[name].stride(), r[name].shape, strict=True) if n > 1]
            for r in (found, eager)
        ]
        if strides[0] != strides[1]:
            wrong.append(f"{name}: strides {strides[0]}, not {strides[1]}")
        if not torch.equal(got.isfinite(), usual.isfinite()) or not torch.equal(got.isnan(), usual.isnan()):
            wrong.append(f"{name}: other numbers are finite than in eager mode")
        whole = truth.isfinite() & got.isfinite()
        error, own = (float((r - truth)[whole].norm() / truth[whole].norm()) for r in (got, usual))
        if error > 1.5 * own + 1e-3:
            wrong.append(f"{name}: off by {error}, where eager mode is by {own}")
    calls = [call for report in last_reports() for call in report.calls]
    if sum("few_queries" in call for call in calls) < len(given):
        wrong.append(f"the library is called: {calls}")
    return wrong


def interpreted_faults(names: Sequence[str] = ()) -> list[str]:
    """The same of some cases, or of all, where Triton interprets."""
    from triton_interpreted import offer

    offer()
    return faults({name: CASES[name] for name in names or CASES})


@every_form()
def faults_of_what_is_left() -> list[str]:
    """What is wrong with calls that the library should compute."""
    from polyfuse.compiler.reports.report import last_reports, reset_reports
    from triton_interpreted import offer

    offer()
    wrong: list[str] = []
    for name, make in LEFT.items():
        torch._dynamo.reset()
        reset_reports()
        given = make()
        with torch.no_grad():
            compiled = torch.compile(
                lambda of=given: _attend(of), backend="polyfuse", options={"backends": "interpreted"}
            )
            torch.testing.assert_close(compiled(), _attend(given))
        calls = [call for report in last_reports() for call in report.calls]
        if any("few_queries" in call for call in calls):
            wrong.append(f"{name}: {calls}")
    return wrong


DEFECTS = (
    ("parts", "weight = tl.exp2(top1 - base)", "weight = tl.exp2(top1 - top1)"),
    ("a window", "totals = totals * share + p", "totals = totals + p"),
    ("a bias", "h = kh * 2 + row // 3", "h = kh * 2 + row // 4"),
)
"""A call, what its kernel says, and what it should not say."""


@every_form()
def faults_of_checked(defects: bool, device: str = "cpu") -> list[str]:
    """Under the option `check`: honest kernels that were not compared or were found wrong, or defects that
    were not found.
    """
    from triton_written import what_check_says

    if device == "cpu":
        from triton_interpreted import offer

        offer()
    wrong: list[str] = []
    honest = [(name, "", "") for name in ("parts", "a sequence without keys", "f16", "a bias")]
    for name, old, new in DEFECTS if defects else honest:
        if device != "cpu" and name not in MEASURED:
            continue
        with torch.device(device):
            given = CASES[name]()

        def run(asked: dict[str, Any], given: Operands = given) -> list[Any]:
            with torch.no_grad():
                return [torch.compile(lambda: _attend(given), backend="polyfuse", options=asked)()]

        options = {"backends": "interpreted"} if device == "cpu" else {}
        (result,), kernels, found = what_check_says(run, options, (old, new, "few_queries"))
        if not kernels:
            wrong.append(f"{name}: not compared")
        if found != (["triton few_queries"] if old else []):
            wrong.append(f"{name} with {new!r}: found {found}")
        torch.testing.assert_close(result, _attend(given), rtol=2e-2, atol=2e-2, equal_nan=True)
    return wrong
