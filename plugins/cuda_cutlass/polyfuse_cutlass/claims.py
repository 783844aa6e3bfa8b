"""What the code generator can compute: matrix multiplications, and loops that can be their epilogues."""

from __future__ import annotations

from polyfuse.ir.expr import walk
from polyfuse.ir.nodes import LoopNode, Node, Pointwise, Reduction, Scatter
from polyfuse.ir.ops import CONTRACTIONS, GROUP_MODES, SCALAR_OPS
from polyfuse.ir.types import DType
from polyfuse.plugin import Claim, No, Yes
from polyfuse_cutlass.codegen.ops import unsupported_op

_SIMPLE = frozenset(("const", "index", "size", "load", "cast", "bitcast"))


def claim_of(node: Node) -> Claim:
    """GEMMs of types that the hardware takes; pointwise loops of operations that CUDA has."""
    if not isinstance(node, LoopNode):
        return No(f"{type(node).__name__} is not a loop")
    if isinstance(node, Reduction):
        return _product(node)
    if isinstance(node, Scatter) and node.mode in GROUP_MODES:
        if node.value.dtype is not DType.f32:
            return No(f"groups of results are combined as f32, not as {node.value.dtype}")
    elif not isinstance(node, Pointwise):
        return No("only matrix multiplications are generated, with what is done to each of their results")
    for expr in walk(*node.expressions()):
        if expr.op not in _SIMPLE and expr.op not in SCALAR_OPS:
            return No(f"{expr.op} is not computed in an epilogue")
        if expr.op in SCALAR_OPS:
            reason = unsupported_op(expr.op, expr.args[-1].dtype)
            if reason:
                return No(reason)
    return Yes()


def _product(node: Reduction) -> Claim:
    if node.kind not in CONTRACTIONS:
        return No(f"{node.kind} is no matrix multiplication")
    if len(node.raxes) != 1:
        return No(f"it adds up over {len(node.raxes)} axes")
    for value in node.values:
        if value.op != "load":
            return No("an operand is computed before it is multiplied")
        if value.dtype in (DType.f64, DType.i16, DType.i32, DType.i64, DType.u16, DType.u32, DType.u64):
            return No(f"the multipliers take no {value.dtype} operands")
        if value.dtype is DType.f32 and node.kind != "dot_tf32":
            return No("the multipliers round f32 operands, which torch does not allow here")
    return Yes()
