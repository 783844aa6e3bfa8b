"""What programs have stored for each other by now, for an interpreter that runs one after the other."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["glanced"]


@triton.jit
def glanced(places, mask):
    """Words at several places, whether or not they are there."""
    return tl.load(places, mask=mask, other=1 << 32, volatile=True)
