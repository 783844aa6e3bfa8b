"""Matrix products: library calls that plugins may take over."""

from __future__ import annotations

from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.lowering.calls.extern import call, call_out
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.elements.pointwise import elementwise
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue
from polyfuse.rewrite import make
from polyfuse.torch_compat import ops


@lowers(
    "aten.mm.default",
    "aten.bmm.default",
    "aten.addmm.default",
    "aten.baddbmm.default",
    "aten._int_mm.default",
    library=True,
)
def product(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> TensorValue:
    name = ops.op_name(node.target)
    if ctx.template(node.meta["val"]).dtype is None or named.get("out_dtype") is not None:
        raise UnsupportedError("products of such types are left to the eager operator")
    if name == "aten.addmm.default" and not named and _is_added_later(ctx, node):
        term, left, right = args
        alone = call_out(ctx, node.meta["val"], "aten.mm.out", (left, right))
        return elementwise(ctx, node, (alone, term), lambda p, t: make("add", p, t))
    return call_out(ctx, node.meta["val"], name.replace(".default", ".out"), args, named)


def _is_added_later(ctx: LoweringContext, node: Any) -> bool:
    """Whether what is added to a product is better added by the kernels that read the sum: it costs them
    nothing, and the device's library has faster products than sums."""
    if ctx.settings.gemm not in ("library", "known") or ctx.settings.numerics == "eager":
        return False
    readers = ctx.readers.get(node)
    if readers is None or readers.stored or not readers.passes:
        return False
    return ctx.target_info(str(node.meta["val"].device)).separate_gemm_add


@lowers("aten.convolution.default", library=True)
def convolution(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> TensorValue:
    result: TensorValue = call(ctx, node.meta["val"], ops.op_name(node.target), args, named, template=True)
    return result


@lowers(
    "aten.convolution_backward.default",
    "aten._scaled_mm.default",
    "aten.mkldnn_rnn_layer.default",
    "aten.sort.default",
    "aten.sort.stable",
    "aten.topk.default",
    "aten._embedding_bag.default",
    "aten._embedding_bag_forward_only.default",
    library=True,
)
def library_call(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> Any:
    return call(ctx, node.meta["val"], ops.op_name(node.target), args, named, template=True)
