"""What programs have stored for each other by now, for an interpreter that runs one after the other."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["glanced"]


@triton.jit
def glanced(addresses, mask):
    """Words at several addresses, whether or not they are there."""
    return tl.load(addresses, mask=mask, other=1 << 32, volatile=True)
