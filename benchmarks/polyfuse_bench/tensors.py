"""Trees of tensors: cloning inputs and measuring how far two results are apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def clone_tree(tree: Any) -> Any:
    """A copy of a tree of tensors; copies keep `requires_grad` and are leaves."""
    return pytree.tree_map(_clone, tree)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


ROUNDING = 1e-5


def bytes_in(tree: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(tree))


def bytes_moved(function: Callable[..., Any], arguments: Any) -> int:
    """Bytes that a call must move: its arguments once, what it writes of them once more, and its results."""
    given = tensors_in(arguments)
    # not by their versions: lists of tensors are changed without counting
    before = [tensor.detach().clone() for tensor in given]
    results = function(*arguments)
    written = [now for now, then in zip(given, before, strict=True) if not torch.equal(now.detach(), then)]
    return bytes_in(arguments) + bytes_in(written) + bytes_in(results)


def relative_error(actual: Any, expected: Any) -> float:
    """The largest difference, as a part of the largest finite magnitude of the same expected tensor.

    A tensor whose values are all below `ROUNDING` of the largest in the tree is measured against that: the
    gradient of an attention key's bias is zero in exact arithmetic, and what is found there is rounding.

    Infinite when structure, shape or dtype differ, or one side has a NaN or an infinity that the other lacks.
    """
    mine, theirs = tensors_in(actual), tensors_in(expected)
    if len(mine) != len(theirs):
        return float("inf")
    floor = ROUNDING * max((_magnitude(e) for e in theirs), default=0.0)
    return max((_one_error(a, e, floor) for a, e in zip(mine, theirs, strict=True)), default=0.0)


def _clone(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _magnitude(tensor: torch.Tensor) -> float:
    """The largest finite magnitude of a floating-point tensor."""
    if tensor.numel() == 0 or not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    magnitude = tensor.detach().abs()
    return torch.where(torch.isfinite(magnitude), magnitude, 0).max().item()


def _one_error(actual: torch.Tensor, expected: torch.Tensor, floor: float = 0.0) -> float:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    if actual.numel() == 0:
        return 0.0
    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    a, e = actual.detach().to(wide), expected.detach().to(wide)
    finite = torch.isfinite(e)
    same_special = torch.equal(torch.isfinite(a), finite) and torch.equal(
        torch.nan_to_num(a[~finite].real, 0.5), torch.nan_to_num(e[~finite].real, 0.5)
    )
    if not same_special:
        return float("inf")
    if not finite.any():
        return 0.0
    difference = (a[finite] - e[finite]).abs().max().item()
    scale = max(e[finite].abs().max().item(), floor)
    return difference / scale if scale > 0 else difference
