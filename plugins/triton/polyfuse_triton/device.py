"""The module `libdevice` of device functions: CUDA's, or stand-ins where Triton interprets kernels."""

from __future__ import annotations

import triton

if triton.knobs.runtime.interpret:
    from polyfuse_triton import interpret as libdevice
else:
    from triton.language.extra.cuda import libdevice

__all__ = ["libdevice"]
