"""Which epilogues belong to a GEMM, beyond what `claims` says by their form: it refuses operands that are
computed before they are multiplied, and epilogues that CUDA cannot express.
"""

from __future__ import annotations

from typing import Final

from polyfuse.ir.expr import loads
from polyfuse.ir.nodes import Pointwise, Reduction
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.plugin import Claim, FusionPair, FusionRule, No, Yes
from polyfuse.symbolic import free_axes

_MOST: Final = 4
"""Matrices that an epilogue reads beside the sums, each of which it waits for."""


def few_operands(pair: FusionPair) -> Claim:
    """Whether the epilogue of a GEMM reads few matrices; rows and columns of factors cost little."""
    nodes = (*pair.first, *pair.second)
    if not any(isinstance(node, Reduction) and node.kind in CONTRACTIONS for node in nodes):
        return Yes()
    after = [node for node in nodes if isinstance(node, Pointwise)]
    written = {name for node in nodes for name in node.writes()}
    read = {
        item.buffer
        for node in after
        for expr in node.expressions()
        for item in loads(expr)
        if len(free_axes(item.index)) > 1
    }
    count = len(read - written)
    if count > _MOST:
        return No(f"an epilogue that reads {count} matrices waits for memory while nothing is multiplied")
    return Yes()


RULES: Final = (FusionRule("few-operands", allows=few_operands, backends=("cutlass",)),)
