"""The verifiers: they raise `VerifyError`, which shows the faulty statement among its neighbours.

They run between stages when the option `verify` is on, as it is in all tests.
"""

from __future__ import annotations

from polyfuse.ir.verifier.graph import verify_expr, verify_graph
from polyfuse.ir.verifier.kernel import verify_kernel

__all__ = ["verify_expr", "verify_graph", "verify_kernel"]
