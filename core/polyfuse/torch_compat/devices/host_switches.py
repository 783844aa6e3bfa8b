"""Torch's switches for what the host's libraries compute, and for float32 on every device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

_ONEDNN = torch.backends.mkldnn


def multiplies_bf16() -> bool:
    """Whether the CPU multiplies vectors of bf16. Where it does not, the library's attention in it is slower
    than matmuls around a softmax.
    """
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return supported is not None and bool(supported())


def matmul_precision() -> str:
    """Everything that decides how libraries multiply float32 matrices, as text."""
    newer = (_newer(torch.backends.cuda.matmul), _newer(_ONEDNN.matmul))
    try:
        return f"{torch.get_float32_matmul_precision()} {newer}"
    except RuntimeError:  # torch's older interface refuses where the newer one was used
        return f"{newer}"


def precision_of_matmuls(owner: Any) -> tuple[Callable[[], object], Callable[[Any], object]]:
    """A library's precision by the newer interface: the older one sets `ieee` back where `none` was."""
    return partial(_newer, owner), partial(setattr, owner, "fp32_precision")


def _newer(owner: Any) -> str:
    found: str = owner.fp32_precision
    return "ieee" if found == "none" else found


def attribute(owner: Any, name: str) -> tuple[Callable[[], object], Callable[[Any], object]]:
    """How an attribute of one of torch's backends is read and set, even if torch's test helpers froze it."""
    return partial(getattr, owner, name), partial(_set, owner, name)


def _set(owner: Any, name: str, value: object) -> None:
    with torch.backends.__allow_nonbracketed_mutation():
        setattr(owner, name, value)


# How a switch is read and how it is set.
HOST_SWITCHES: Mapping[str, tuple[Callable[[], object], Callable[[Any], object]]] = {
    # of float32, on every device; it sets the library's own
    "matmuls": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "matmuls of oneDNN": precision_of_matmuls(_ONEDNN.matmul),
    "convolutions of oneDNN": attribute(_ONEDNN.conv, "fp32_precision"),
    "deterministic": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "oneDNN": attribute(_ONEDNN, "enabled"),
    "oneDNN deterministic": attribute(_ONEDNN, "deterministic"),
}
