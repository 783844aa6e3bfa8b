"""What the backend is asked while code is generated. Kernels that were built before are loaded without it."""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.ir.expr import walk
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import LoopNode, Node, Reduction, Scan, Scatter
from polyfuse.ir.ops import CHECK_MODE, CONTRACTIONS, SCANS
from polyfuse.plugin import Claim, Config, No, Yes
from polyfuse_cpp.facts import analyse
from polyfuse_cpp.isa import Isa
from polyfuse_cpp.loop_estimate import loop_seconds
from polyfuse_cpp.loops.kernel import KernelText, kernel_text
from polyfuse_cpp.loops.ops import unsupported_op
from polyfuse_cpp.loops.phases import planned
from polyfuse_cpp.loops.reductions import KINDS
from polyfuse_cpp.matmul.plans import configs_of, nearby_plans, plan_of, plan_seconds, product_plans
from polyfuse_cpp.matmul.problem import has_product, product_of
from polyfuse_cpp.matmul.split_k import product_text
from polyfuse_cpp.prelude import store_modes
from polyfuse_cpp.tiling import lane_choices

__all__ = ["claim", "configs", "estimate", "neighbours", "text"]


def claim(node: Node) -> Claim:
    """All loop nodes on values of the IR's types; anything else is somebody else's."""
    if not isinstance(node, LoopNode):
        return No(f"{type(node).__name__} is not a loop")
    if isinstance(node, Reduction) and node.kind not in (*KINDS, *CONTRACTIONS):
        return No(f"the reduction {node.kind} is unknown")
    if isinstance(node, Scan) and (node.kind not in SCANS or len(node.raxes) != 1):
        return No(f"the scan {node.kind} over {len(node.raxes)} axes is unknown")
    if isinstance(node, Scatter) and node.mode not in (*store_modes(), CHECK_MODE):
        return No(f"the store mode {node.mode} is unknown")
    for expr in walk(*node.expressions()):
        operand = expr.args[-1].dtype if expr.args else expr.dtype
        reason = unsupported_op(expr.op, operand)
        if reason:
            return No(reason)
    return Yes()


def configs(kernel: Kernel, isa: Isa) -> Sequence[Config]:
    """Other lane axes and, where something is accumulated, other numbers of vectors side by side; for a
    product of matrices, other tiles and other ways to read its operands.
    """
    if has_product(kernel):
        return configs_of(product_plans(product_of(kernel), isa))
    if isa.lanes == 1:
        return ()
    facts = analyse(kernel)
    found = [Config()]
    if facts.raxes:
        found.extend(Config.of(unroll=count) for count in (1, 2, 4, 8))
    lanes = lane_choices(kernel, facts)
    if len(lanes) > 1:
        found.extend(Config.of(lane=place) for place in lanes)
    return found if len(found) > 1 else ()


def neighbours(kernel: Kernel, config: Config, isa: Isa) -> Sequence[Config]:
    """Other tiles and depths of a product of matrices."""
    if not has_product(kernel):
        return ()
    return configs_of(nearby_plans(product_of(kernel), isa, plan_of(config)))


def estimate(kernel: Kernel, config: Config, isa: Isa) -> float:
    """Seconds, roughly: by tiles and layouts for a product, by the reach of the lanes for other loops."""
    if has_product(kernel):
        return plan_seconds(product_of(kernel), isa, plan_of(config))
    return loop_seconds(*planned(kernel, isa.lanes, config.get("lane"), config.get("unroll")))


def text(kernel: Kernel, config: Config | None, isa: Isa) -> KernelText:
    """The text of a kernel, with its signature and the headers that it needs."""
    if has_product(kernel):
        product = product_of(kernel)
        plan = plan_of(config) if config else product_plans(product, isa)[0]
        return product_text(product, plan, isa)
    chosen = config or Config()
    return kernel_text(kernel, isa.lanes, chosen.get("lane"), chosen.get("unroll"))
