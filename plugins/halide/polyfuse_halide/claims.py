"""What the code generator can compute, and what Halide gets wrong on devices, though it compiles."""

from __future__ import annotations

from polyfuse.ir.expr import walk
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import LoopNode, Node, Reduction, Scan, Scatter
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.ir.statements import Scan as ScanStatement
from polyfuse.ir.statements import is_check
from polyfuse.ir.types import DType
from polyfuse.plugin import Claim, No, Yes
from polyfuse.symbolic import atoms
from polyfuse_halide.codegen.ops import REDUCTIONS, SCANS, unsupported_op

_MODES = ("set", "add", "min", "max", "mul")
"""Stores that have a text."""
_WITH_POSITIONS = ("min", "max")
"""Scans that keep the position of what they found: measured on an H200, their positions were not stored."""


def claim_of(node: Node) -> Claim:
    """Loop nodes over values of the types that Halide has, with operations that the library has."""
    if not isinstance(node, LoopNode):
        return No(f"{type(node).__name__} is not a loop")
    if isinstance(node, Reduction) and node.kind not in REDUCTIONS:
        return No(f"Halide has no reduction {node.kind}")
    if isinstance(node, Scan) and (node.kind not in SCANS or len(node.raxes) != 1):
        return No(f"Halide has no scan {node.kind} over {len(node.raxes)} axes")
    if isinstance(node, Scatter) and node.mode not in (*_MODES, CHECK_MODE):
        return No(f"the store mode {node.mode} is unknown")
    for expr in walk(*node.expressions()):
        operand = expr.args[-1].dtype if expr.args else expr.dtype
        reason = unsupported_op(expr.op, operand, expr.kind if expr.op == "rand" else "")
        if reason:
            return No(reason)
        index = expr.index if expr.op in ("load", "index", "size") else 0
        if any(a.kind == "host" for a in atoms(index)):
            return No("an index needs a number that only the host can compute")
    if isinstance(node, Reduction) and node.kind in ("welford", "online_softmax"):
        if node.values[0].dtype not in (DType.f32, DType.f64):
            return No(f"there is no {node.kind} of {node.values[0].dtype}")
    return Yes()


def device_fault(kernel: Kernel) -> str:
    """Why a kernel is left to another backend on a device, or an empty text."""
    if kernel.numerics == "eager":
        # PTX of Halide's multiplies and adds in one step, with one rounding
        return "Halide rounds otherwise than eager mode on devices"
    for section in kernel.sections:
        for stmt in section.body:
            if is_check(stmt):
                return "Halide's kernels cannot stop a device where an index is out of range"
            if isinstance(stmt, ScanStatement) and stmt.kind in _WITH_POSITIONS:
                return f"Halide's scans {stmt.kind} lose positions on devices"
    return ""
