"""The reference interpreter: executes kernels and graphs with plain torch operations.

It is slow and says what is right. Each value is a tensor over the whole iteration space, or, where that is
large, over a part of it at a time.
"""

from __future__ import annotations

from polyfuse.ir.interpreter.graph import run_graph
from polyfuse.ir.interpreter.kernel import run_kernel

__all__ = ["run_graph", "run_kernel"]
