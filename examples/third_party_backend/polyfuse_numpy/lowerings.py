"""What the compiler would otherwise call as it is becomes part of kernels."""

from __future__ import annotations

from typing import Any

from polyfuse.plugin import Expr, LoweringContext, TensorValue, apply


def swiglu(ctx: LoweringContext, node: Any, gate: TensorValue, up: TensorValue) -> TensorValue:
    """`gate * sigmoid(gate) * up`, element by element."""

    def body(g: Expr, u: Expr) -> Expr:
        return apply("mul", apply("mul", g, apply("sigmoid", g)), u)

    return ctx.elementwise(node, (gate, up), body)


LOWERINGS = {"polyfuse_numpy.swiglu.default": swiglu}
