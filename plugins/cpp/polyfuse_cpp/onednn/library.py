"""Whether torch brings oneDNN, and which types it computes by instructions of this CPU."""

from __future__ import annotations

from functools import lru_cache

import torch

from polyfuse.ir.types import DType


def offered() -> bool:
    """Whether this torch brings oneDNN, and it is not switched off."""
    library = torch.backends.mkldnn
    return library.is_available() and bool(getattr(library, "enabled", True))


@lru_cache(maxsize=1)
def _instructions() -> frozenset[DType]:
    """The types of 16 bits that the library computes by instructions of this CPU."""
    known = {DType.bf16: "_is_mkldnn_bf16_supported", DType.f16: "_is_mkldnn_fp16_supported"}
    return frozenset(kind for kind, name in known.items() if getattr(torch.ops.mkldnn, name)())


def narrow_types() -> frozenset[DType]:
    """The types of 16 bits that the library computes faster than anything that torch has beside it."""
    return _instructions() if offered() else frozenset()


def convolved_types() -> frozenset[DType]:
    """The types that the library convolves faster than anything that torch has beside it."""
    return narrow_types() | {DType.f32} if offered() else frozenset()
