"""Whether torch lets matmuls of float32 be computed with fewer bits, and its other switches of libraries."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["library_flags", "rounds_convolutions", "rounds_matmuls", "set_library_flags"]


def rounds_matmuls(device: str) -> bool:
    """Whether float32 operands of matmuls on a device may be rounded to ten bits of fraction."""
    return not device.startswith("cpu") and torch.get_float32_matmul_precision() != "highest"


def rounds_convolutions(device: str) -> bool:
    """Whether float32 operands of convolutions on a device may be rounded to ten bits of fraction."""
    return not device.startswith("cpu") and bool(torch.backends.cudnn.allow_tf32)


def library_flags() -> Mapping[str, object]:
    """The switches of torch that decide how libraries compute, for `set_library_flags` in another process."""
    found: dict[str, object] = {}
    for name, (read, _) in _FLAGS.items():
        with contextlib.suppress(RuntimeError):  # torch refuses where two of its interfaces were mixed
            found[name] = read()
    return found


def set_library_flags(flags: Mapping[str, object]) -> None:
    """Set the switches as they were where `library_flags` read them."""
    for name, value in flags.items():
        with contextlib.suppress(RuntimeError):
            _FLAGS[name][1](value)


def _allow_rounding(value: object) -> None:
    torch.backends.cudnn.allow_tf32 = bool(value)


def _search(value: object) -> None:
    torch.backends.cudnn.benchmark = bool(value)


_FLAGS: Mapping[str, tuple[Callable[[], object], Callable[[Any], None]]] = {
    "matmuls": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "convolutions": (lambda: torch.backends.cudnn.allow_tf32, _allow_rounding),
    "search": (lambda: torch.backends.cudnn.benchmark, _search),
}
