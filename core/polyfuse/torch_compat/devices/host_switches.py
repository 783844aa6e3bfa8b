"""Torch's switches for what the host's libraries compute, and for float32 on every device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

__all__ = ["HOST_SWITCHES", "matmul_precision"]

_ONEDNN = torch.backends.mkldnn


def matmul_precision() -> str:
    """Everything that decides how libraries multiply float32 matrices, as text."""
    newer = (torch.backends.cuda.matmul.fp32_precision, _ONEDNN.matmul.fp32_precision)
    try:
        return f"{torch.get_float32_matmul_precision()} {newer}"
    except RuntimeError:  # torch's older interface refuses where the newer one was used
        return f"{newer}"


def _attribute(owner: Any, name: str) -> tuple[Callable[[], object], Callable[[Any], object]]:
    return partial(getattr, owner, name), partial(setattr, owner, name)


# How a switch is read and how it is set.
HOST_SWITCHES: Mapping[str, tuple[Callable[[], object], Callable[[Any], object]]] = {
    # of float32, on every device; it sets the library's own
    "matmuls": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "matmuls of oneDNN": _attribute(_ONEDNN.matmul, "fp32_precision"),
    "convolutions of oneDNN": _attribute(_ONEDNN.conv, "fp32_precision"),
    "deterministic": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "oneDNN": _attribute(_ONEDNN, "enabled"),
    "oneDNN deterministic": _attribute(_ONEDNN, "deterministic"),
}
