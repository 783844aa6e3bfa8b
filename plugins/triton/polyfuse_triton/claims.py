"""What the code generator can compute."""

from __future__ import annotations

from polyfuse.ir.expr import walk
from polyfuse.ir.nodes import LoopNode, Node, Reduction, Scan, Scatter
from polyfuse.ir.ops import CHECK_MODE, CONTRACTIONS
from polyfuse.plugin import Claim, No, Yes
from polyfuse_triton.loops.memory import ATOMIC_MODES
from polyfuse_triton.loops.ops import unsupported_op
from polyfuse_triton.reductions.reduce import REDUCTIONS
from polyfuse_triton.reductions.scans import SCANS
from polyfuse_triton.target import Target

_EIGHT_BIT_FLOATS = 89
"""The first compute capability with conversions of 8-bit floating-point numbers."""


def claim_of(node: Node, target: Target) -> Claim:
    """All loop nodes on values of the IR's types; anything else is somebody else's."""
    if not isinstance(node, LoopNode):
        return No(f"{type(node).__name__} is not a loop")
    if isinstance(node, Reduction) and node.kind not in (*REDUCTIONS, *CONTRACTIONS):
        return No(f"the reduction {node.kind} is unknown")
    if isinstance(node, Scan) and (node.kind not in SCANS or len(node.raxes) != 1):
        return No(f"the scan {node.kind} over {len(node.raxes)} axes is unknown")
    if isinstance(node, Scatter) and node.mode not in ("set", *ATOMIC_MODES, CHECK_MODE):
        return No(f"the store mode {node.mode} is unknown")
    for expr in walk(*node.expressions()):
        if expr.dtype.is_eight_bit_float and (
            target.arch < _EIGHT_BIT_FLOATS or not expr.dtype.has_negative_zero
        ):
            return No(f"{target.name} has no conversions of {expr.dtype}")
        operand = expr.args[-1].dtype if expr.args else expr.dtype
        kind = expr.kind if expr.op == "rand" else ""
        reason = unsupported_op(expr.op, operand, kind)
        if reason:
            return No(reason)
    if isinstance(node, Scatter) and node.mode != "set" and node.value.dtype.is_eight_bit_float:
        return No(f"there is no atomic {node.mode} on {node.value.dtype}")
    return Yes()
