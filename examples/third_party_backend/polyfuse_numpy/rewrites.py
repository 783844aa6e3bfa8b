"""Changes of the captured graph that suit NumPy."""

from __future__ import annotations

import math

from torch.fx import Node

from polyfuse.plugin import Rewrite, RewriteContext


def exact_reciprocal(ctx: RewriteContext, node: Node) -> Node | None:
    """Division by a power of two is a multiplication, which is faster and gives the same numbers."""
    value, divisor = ctx.tensor(node.args[0]), ctx.number(node.args[1])
    if value is None or not value.is_floating_point() or not divisor or node.kwargs:
        return None
    fraction, exponent = math.frexp(divisor)
    if abs(fraction) != 0.5 or abs(exponent) > 10:
        return None
    return ctx.call("aten.mul.Tensor", (node.args[0], 1 / divisor))


REWRITES = (Rewrite("exact-reciprocal", ("aten.div.Tensor",), exact_reciprocal),)
