"""The module `libdevice` of device functions: CUDA's, or stand-ins where Triton interprets kernels."""

from __future__ import annotations

from typing import Any

import triton

libdevice: Any
if triton.knobs.runtime.interpret:
    from polyfuse_triton import interpret

    libdevice = interpret
else:
    from triton.language.extra import cuda

    libdevice = cuda.libdevice

__all__ = ["libdevice"]
