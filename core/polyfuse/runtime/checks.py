"""Checks that host programs make on values while they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from polyfuse.base.errors import PolyfuseError
from polyfuse.torch_compat.bindings import assert_size_stride

__all__ = ["Observer", "assert_finite", "assert_layout", "conform", "observe", "set_observer"]

Observer = Callable[[str, torch.Tensor], None]

_observer: Observer | None = None


def assert_layout(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> None:
    """Raise AssertionError for a wrong size or stride; a tensor that has no strides (a sparse one) passes."""
    if tensor.layout is torch.strided:
        assert_size_stride(tensor, size, stride)


def assert_finite(tensor: torch.Tensor, label: str) -> None:
    """Raise if a tensor holds NaN or infinity."""
    if tensor.is_floating_point() or tensor.is_complex():
        if not torch.isfinite(tensor).all().item():
            what = "NaN" if torch.isnan(tensor).any().item() else "infinity"
            raise PolyfuseError(
                f"{label} holds {what} (shape {tuple(tensor.shape)})",
                "the operator named below made it; without the option `nan_asserts` this is not checked",
            )


def conform(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """The tensor itself if it has this layout, else a copy that has it.

    An operator may choose other strides when it runs than it announced when it was traced.
    """
    try:
        assert_size_stride(tensor, size, stride)
    except AssertionError:
        if tuple(tensor.shape) != tuple(size):
            raise PolyfuseError(
                f"an operator returned the shape {tuple(tensor.shape)} where {tuple(size)} was announced",
                "correct the operator's fake (meta) implementation",
            ) from None
        copy = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
        return copy.copy_(tensor)
    return tensor


def set_observer(observer: Observer | None) -> Observer | None:
    """Register the function that programs compiled to be observed show their intermediate values to.

    It is called with the name of the graph's operator and the value. Returns the one registered before.
    """
    global _observer
    previous, _observer = _observer, observer
    return previous


def observe(label: str, tensor: torch.Tensor) -> None:
    """Show a value to the observer, if there is one."""
    if _observer is not None:
        _observer(label, tensor)
