"""How far reductions and scans of a right kernel may be from the interpreter's, which adds up in double
precision: by the bounds of their terms, and by the roundings of another order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyfuse.checking.compare import ZERO, apart
from polyfuse.ir.ops import CONTRACTIONS

Errors = tuple[Tensor | None, ...]

# Operands of a matmul that are rounded to ten bits of fraction, and accumulators of 8-bit floats.
_TF32 = 2.0**-10
_FAST = 2.0**-12


def steps(count: int) -> float:
    """Roundings, in units in the last place of the sum of magnitudes, that the order of so many additions may
    amount to.

    Rounding errors of a sum behave like a random walk. Those of very long sums in few registers need not:
    equal terms are rounded the same way each time.
    """
    if count < 2:
        return 0.0
    return float(min(count, max(4.0 + 2.0 * count**0.5, count / 128)))


def reduced(kind: str, values: tuple[Tensor, ...], errors: Errors, found: tuple[Tensor, ...]) -> Errors:
    """The bounds of a reduction's results. Values and their bounds are rows, reduced along the last axis."""
    value, error = values[0], errors[0]
    if kind in CONTRACTIONS:
        return (_product(kind, values, errors, found[0]),)
    if kind in ("argmin", "argmax"):
        return _extreme(kind, value, error, found)
    if kind in ("min", "max"):
        return (_moved_extreme(kind, value, error, found[0]),)
    if kind == "sum":
        return (_sum(value, error, found[0]),)
    if kind == "prod":
        return (_prod(value, error, found[0]),)
    if kind == "welford":
        return _welford(value, error, found)
    if kind == "online_softmax":
        return _softmax(value, error, found)
    return (_any(error),)


def scanned(kind: str, values: tuple[Tensor, ...], errors: Errors, found: tuple[Tensor, ...]) -> Errors:
    """The bounds of a scan's results, at each point."""
    value, error = values[0], errors[0]
    floating = value.dtype.is_floating_point
    if kind == "sum":
        passed = None if error is None else error.double().cumsum(-1)
        if not floating:
            return (passed,)
        sizes = value.double().abs().nan_to_num(0.0, 0.0).cumsum(-1)
        own = _along(value) * _eps(value) * sizes
        return (_added(passed, own, found[0]),)
    if kind == "prod":
        if not floating:
            return (_any_so_far(error),)
        size = value.double().abs()
        wide = size if error is None else size + error
        own = wide.cumprod(-1) - size.cumprod(-1) + 2 * _along(value) * _eps(value) * wide.cumprod(-1)
        return (_added(None, own, found[0]),)
    if kind == "logsumexp":
        own = 4 * _along(value) * _eps(value) * (1 + found[0].double().abs().nan_to_num(0.0, 0.0))
        own = own + 4 * _eps(value) * value.double().abs().nan_to_num(0.0, 0.0).cummax(-1).values
        passed = None if error is None else error.double().cummax(-1).values
        return (_added(passed, own, found[0]),)
    doubt = _any_so_far(error)
    passed = _either_zero(found[0]) if error is None else error.double().cummax(-1).values + ZERO
    return (passed, doubt)


def _sum(value: Tensor, error: Tensor | None, found: Tensor) -> Tensor | None:
    passed = None if error is None else error.double().sum(-1)
    if not value.dtype.is_floating_point:
        return passed
    sizes = value.double().abs().nan_to_num(0.0, 0.0).sum(-1)
    return _added(passed, steps(value.shape[-1]) * _eps(value) * sizes, found)


def _prod(value: Tensor, error: Tensor | None, found: Tensor) -> Tensor | None:
    if not value.dtype.is_floating_point:
        return _any(error)
    size = value.double().abs()
    wide = size if error is None else size + error
    own = wide.prod(-1) - size.prod(-1) + value.shape[-1] * _eps(value) * wide.prod(-1)
    return _added(None, own, found)


def _product(kind: str, values: tuple[Tensor, ...], errors: Errors, found: Tensor) -> Tensor | None:
    left, right = (v.double().abs().nan_to_num(0.0, 0.0) for v in values)
    sizes = (left * right).sum(-1)
    count = values[0].shape[-1]
    if not found.dtype.is_floating_point:
        return None if errors == (None, None) else torch.where(_total(errors).sum(-1) > 0, torch.inf, 0.0)
    eps = torch.finfo(found.dtype).eps
    # multipliers of devices cut off where they add, instead of rounding, which does not average out
    amount = (8.0 + max(steps(count), count / 8)) * eps
    if kind == "dot_tf32":
        amount += _TF32
    if kind == "dot_fast":
        amount += _FAST * (1 + count / 32)
    passed: Tensor | None = None
    for error, other in ((errors[0], right), (errors[1], left)):
        if error is not None:
            part = (error.double() * other).nan_to_num(nan=0.0).sum(-1)
            passed = part if passed is None else passed + part
    return _added(passed, amount * sizes, found)


def _total(errors: Errors) -> Tensor:
    known = [e for e in errors if e is not None]
    return sum(known[1:], known[0])


def _moved_extreme(kind: str, value: Tensor, error: Tensor | None, found: Tensor) -> Tensor | None:
    if error is None:
        return _either_zero(found)
    if value.shape[-1] == 0:
        return torch.zeros_like(found, dtype=torch.float64)
    wide = value.double()
    pick = torch.amax if kind in ("max", "argmax") else torch.amin
    moved = torch.maximum(apart(pick(wide + error, -1), found), apart(pick(wide - error, -1), found))
    moved = torch.where(found == 0, moved + ZERO, moved)
    return torch.where((error == torch.inf).any(-1), torch.inf, moved)


def _either_zero(found: Tensor) -> Tensor | None:
    """The bound of results that may be another zero among the operands than the interpreter's."""
    if not found.dtype.is_floating_point or not bool((found == 0).any()):
        return None
    return torch.where(found == 0, ZERO, 0.0).double()


def _extreme(kind: str, value: Tensor, error: Tensor | None, found: tuple[Tensor, ...]) -> Errors:
    if error is None or value.shape[-1] == 0:
        return (_either_zero(found[0]), None)
    wide, best = value.double(), found[0].double().unsqueeze(-1)
    gap = (best - wide) if kind == "argmax" else (wide - best)
    chosen = gap == 0
    own = torch.where(chosen, error, 0.0).amax(-1, keepdim=True)
    # a tie of exact values is decided by the position
    rival = ~(gap > error + own) & (error + own > 0)
    doubt = (rival.sum(-1) > 1) | (error == torch.inf).any(-1)
    return (_moved_extreme(kind, value, error, found[0]), torch.where(doubt, torch.inf, 0.0))


def _welford(value: Tensor, error: Tensor | None, found: tuple[Tensor, ...]) -> Errors:
    count = max(1, value.shape[-1])
    eps, amount = _eps(value), 4 + steps(count)
    wide = value.double()
    passed = torch.zeros_like(wide) if error is None else error.double()
    mean, squares = found[0].double(), found[1].double()
    sizes = wide.abs().nan_to_num(0.0, 0.0).sum(-1)
    mean_error = passed.sum(-1) / count + amount * eps * sizes / count
    deviation = (wide - mean.unsqueeze(-1)).abs().nan_to_num(0.0, 0.0)
    moved = (2 * deviation * passed + passed.square()).sum(-1)
    # what rounding the mean and each difference from it does to the squares
    fine = eps * (wide.abs().nan_to_num(0.0, 0.0) + mean.abs().nan_to_num(0.0, 0.0).unsqueeze(-1))
    rounded = (2 * deviation * fine + fine.square()).sum(-1) * 4
    shifted = count * mean_error.square() + 2 * mean_error * deviation.sum(-1)
    size = squares.abs().nan_to_num(0.0, 0.0)
    return (
        _added(None, mean_error, found[0]),
        _added(moved, rounded + shifted + 2 * amount * eps * size, found[1]),
        None,
    )


def _softmax(value: Tensor, error: Tensor | None, found: tuple[Tensor, ...]) -> Errors:
    eps = _eps(value)
    wide, largest = value.double(), found[0].double().unsqueeze(-1)
    top = _moved_extreme("max", value, error, found[0])
    terms = (wide - largest).exp().nan_to_num(0.0, 0.0)
    distance = (wide - largest).abs().nan_to_num(0.0, 0.0)
    relative = eps * (4 + 4 * distance)
    if error is not None and top is not None:
        relative = relative + error + top.unsqueeze(-1)
    amount = 4 + 2 * steps(value.shape[-1])
    own = (terms * torch.expm1(relative)).nan_to_num(nan=0.0).sum(-1) + amount * eps * terms.sum(-1)
    return (top, _added(None, own, found[1]))


def _added(passed: Tensor | None, own: Tensor, found: Tensor) -> Tensor:
    total = own if passed is None else passed + own
    # where a sum of nothing but zeros begins is not defined
    total = torch.where(found == 0, total + ZERO, total)
    total = total.nan_to_num(nan=torch.inf)
    # an infinity or NaN among the terms is one in the result, in any order; what only comes near the largest
    # number may become one
    limit = torch.finfo(found.dtype).max
    total = torch.where(found.isfinite() & (found.double().abs() + total > limit), torch.inf, total)
    return torch.where(~found.isfinite() & ~((passed if passed is not None else total * 0) > 0), 0.0, total)


def _any(error: Tensor | None) -> Tensor | None:
    return None if error is None else torch.where((error > 0).any(-1), torch.inf, 0.0)


def _any_so_far(error: Tensor | None) -> Tensor | None:
    return None if error is None else torch.where((error > 0).double().cummax(-1).values > 0, torch.inf, 0.0)


def _along(value: Tensor) -> Tensor:
    count = torch.arange(1, value.shape[-1] + 1, dtype=torch.float64, device=value.device)
    many = torch.maximum(4 + 2 * count.sqrt(), count / 8)
    return torch.where(count > 1, torch.minimum(count, many), 0.0)


def _eps(value: Tensor) -> float:
    return torch.finfo(value.dtype).eps
