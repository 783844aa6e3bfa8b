"""Whether a compiled result is eager's result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

# (relative, absolute) for one element; integers and booleans must be equal.
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-5),
    torch.bfloat16: (2**-7, 1e-5),
    torch.float16: (2**-10, 1e-5),
    torch.complex64: (1e-4, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}

# In these dtypes one rounding is coarse: a result that keeps more precision between two operations than eager
# does differs from it by more than any useful tolerance. The run in higher precision decides, element by
# element; the tolerances above, about one rounding, only save that run. Without such a run these hold.
ONE_ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
WITHOUT_TRUTH = {torch.bfloat16: (1.6e-2, 1e-2), torch.float16: (2e-3, 1e-3)}

# Where one element is out of tolerance, the result still counts as right if a run in higher precision says
# that it is about as close to the truth as eager is.
SLACK_OVER_EAGER = 2.0


@dataclass(frozen=True)
class Difference:
    """How two results differ: `problem` is empty if they agree; strides are apart, being no error."""

    problem: str = ""
    strides: str = ""


def difference(actual: Any, expected: Any, precise: Callable[[], Any]) -> Difference:
    """Compare two trees of results; `precise()` answers the same tree computed in higher precision."""
    mine, my_shape = pytree.tree_flatten(actual)
    theirs, their_shape = pytree.tree_flatten(expected)
    if len(mine) != len(theirs):
        return Difference(f"structure: {my_shape} instead of {their_shape}")
    strides = ""
    for position, (a, e) in enumerate(zip(mine, theirs, strict=True)):
        where = f"output {position}: " if len(theirs) > 1 else ""
        problem = _leaf_problem(a, e, TOLERANCES)
        if problem.startswith("values"):
            truth = _truth(e, position, precise)
            if truth is None:
                problem = _leaf_problem(a, e, {**TOLERANCES, **WITHOUT_TRUTH})
            elif _as_good_as_eager(a, e, truth):
                problem = ""
        if problem:
            return Difference(where + problem, strides)
        if not strides and isinstance(e, torch.Tensor) and _strided(e) and _strides(a) != _strides(e):
            strides = f"{where}strides {a.stride()} instead of {e.stride()}"
    return Difference("", strides)


def _leaf_problem(actual: Any, expected: Any, tolerances: Mapping[torch.dtype, tuple[float, float]]) -> str:
    if not isinstance(expected, torch.Tensor):
        same = actual == expected or (actual != actual and expected != expected)
        return "" if same else f"values: {actual!r} instead of {expected!r}"
    if not isinstance(actual, torch.Tensor):
        return f"type: {type(actual).__name__} instead of a tensor"
    if actual.dtype != expected.dtype:
        return f"dtype: {actual.dtype} instead of {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shape: {tuple(actual.shape)} instead of {tuple(expected.shape)}"
    a, e = _dense(actual), _dense(expected)
    relative, absolute = tolerances.get(e.dtype, (0.0, 0.0))
    if e.dtype in tolerances:
        wrong = ~torch.isclose(a, e, rtol=relative, atol=absolute, equal_nan=True)
    else:
        wrong = a != e
    count = int(wrong.sum())
    if not count:
        return ""
    index = wrong.reshape(-1).nonzero()[0].item()
    first = f"{a.reshape(-1)[index].item()!r} instead of {e.reshape(-1)[index].item()!r}"
    return f"values: {count} of {e.numel()} differ, first {first}"


def _truth(expected: Any, position: int, precise: Callable[[], Any]) -> torch.Tensor | None:
    """The same result computed in higher precision, where that can be had."""
    if not isinstance(expected, torch.Tensor) or expected.dtype not in TOLERANCES:
        return None
    try:
        truth = pytree.tree_leaves(precise())[position]
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return None  # No run in higher precision: eager stays the only judge.
    return truth if isinstance(truth, torch.Tensor) and truth.shape == expected.shape else None


def _as_good_as_eager(actual: torch.Tensor, expected: torch.Tensor, truth: torch.Tensor) -> bool:
    """Whether the result is nearly as close to a run in higher precision as eager's is."""
    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    a, e, t = (_dense(tensor).to(wide) for tensor in (actual, expected, truth))
    if expected.dtype in ONE_ROUNDING:
        return _within_one_rounding(a, e, _dense(truth), expected.dtype)
    finite = torch.isfinite(t) & torch.isfinite(e)
    if not torch.equal(torch.isfinite(a) & torch.isfinite(t), finite) or not finite.any():
        return False
    relative, absolute = TOLERANCES[expected.dtype]
    scale = t[finite].abs().max().item()
    mine, theirs = ((x[finite] - t[finite]).abs().max().item() for x in (a, e))
    return mine <= SLACK_OVER_EAGER * theirs + 0.1 * (absolute + relative * scale)


def _within_one_rounding(a: torch.Tensor, e: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether no element is farther from the truth than eager's by more than one rounding to `dtype`.

    Where both round on the way, as gradients do that are made of saved values, eager is nearer here and the
    result there: then the errors of the whole tensor must be of eager's size.
    """
    rounded, t = truth.to(dtype).double(), truth.double()
    same = (a == e) | (a == rounded) | (a.isnan() & (e.isnan() | t.isnan()))
    rounding = ONE_ROUNDING[dtype] * t.abs() + 2 * torch.finfo(dtype).tiny
    mine, theirs = (a - t).abs(), (e - t).abs()
    if bool((same | (mine <= theirs + rounding)).all()):
        return True
    finite = torch.isfinite(t) & torch.isfinite(e)
    if not torch.equal(torch.isfinite(a) & torch.isfinite(t), finite) or not finite.any():
        return False
    mine, theirs, rounding = mine[finite], theirs[finite], rounding[finite]
    largest = mine.max() <= SLACK_OVER_EAGER * theirs.max() + rounding.max()
    typical = _typical(mine) <= SLACK_OVER_EAGER * _typical(theirs) + _typical(rounding)
    return bool(largest and typical)


def _typical(error: torch.Tensor) -> torch.Tensor:
    return error.square().mean().sqrt()


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    detached = tensor.detach()
    return detached if detached.layout is torch.strided else detached.to_dense()


def _strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of the dimensions that have more than one index: the others mean nothing."""
    if tensor.numel() == 0:
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
