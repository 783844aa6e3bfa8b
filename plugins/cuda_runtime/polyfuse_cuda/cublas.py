"""cuBLASLt as torch has loaded it."""

from __future__ import annotations

import ctypes
import os
from functools import cache

_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11")


@cache
def matmul_library() -> str:
    """The name of the library; empty where torch has none of its own, or holds it inside another."""
    for name in _NAMES:
        try:
            ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            continue
        return name
    return ""
