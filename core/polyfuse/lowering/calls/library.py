"""Operators left to library calls on purpose: algorithms that are no loops over elements, and random numbers,
so that a compiled model draws what eager mode draws."""

from __future__ import annotations

from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.lowering.calls.extern import call, call_out
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.elements.pointwise import elementwise
from polyfuse.lowering.reductions.depthwise_backward import (
    depthwise_backward,
    depthwise_gradients,
    line_gradients,
)
from polyfuse.lowering.reductions.reduction import sum_over
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make
from polyfuse.torch_compat import ops


def _named(names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in names.split())


ORDER_STATISTICS = _named("kthvalue median median.dim nanmedian nanmedian.dim mode _unique2 unique_dim histc")

LOSSES = _named(
    "_ctc_loss _ctc_loss.Tensor _ctc_loss_backward _ctc_loss_backward.Tensor multi_margin_loss_backward "
    "multilabel_margin_loss_forward multilabel_margin_loss_backward"
)

DISTANCES = _named("_cdist_forward _cdist_backward _pdist_forward _pdist_backward")

LINEAR_ALGEBRA = _named(
    "addbmm _trilinear cholesky cholesky_inverse cholesky_solve geqrf ormqr triangular_solve lu_unpack "
    "_linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd linalg_cholesky_ex linalg_eig "
    "linalg_eigvals linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve "
    "linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp "
    "linalg_pinv.atol_rtol_tensor linalg_qr linalg_solve_triangular"
)

MATMULS = _named("mm bmm addmm baddbmm _int_mm _addmm_activation")

TEMPLATES = _named(
    "_grouped_mm _scaled_mm _scaled_grouped_mm mkldnn_rnn_layer sort "
    "sort.stable topk _embedding_bag _embedding_bag_forward_only"
)
"""Calls that plugins may take over."""

CREATION = _named("linspace")
"""What decompositions leave of it: numbers in 16 bits, which eager mode's vectors round on the way."""

ATTENTION = _named(
    " ".join(
        f"_scaled_dot_product_{name}"
        for name in (
            *("flash_attention_for_cpu", "flash_attention_for_cpu_backward"),
            *("flash_attention", "flash_attention_backward"),
            *("efficient_attention", "efficient_attention_backward"),
            *("cudnn_attention", "cudnn_attention_backward", "attention_math_for_mps"),
        )
    )
    + " scaled_dot_product_attention"
)

RANDOM = _named(
    "rand rand.generator randn randn.generator rand_like randn_like randint randint.low randint.generator "
    "randint.low_generator randint_like randint_like.low_dtype randperm randperm.generator bernoulli "
    "bernoulli.p bernoulli.Tensor uniform normal_functional normal.Tensor_Tensor normal.Tensor_float "
    "normal.float_Tensor exponential geometric cauchy log_normal random random.from random.to multinomial "
    "poisson binomial rrelu_with_noise rrelu_with_noise_functional native_dropout"
)
"""They stay in program order."""


@lowers(*ORDER_STATISTICS, *LOSSES, *DISTANCES, *LINEAR_ALGEBRA, *CREATION, library=True)
def library(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> Any:
    return call(ctx, node.meta["val"], ops.op_name(node.target), args, named)


@lowers(*TEMPLATES, library=True)
def template(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> Any:
    return call(ctx, node.meta["val"], ops.op_name(node.target), args, named, template=True)


@lowers("aten.convolution.default", library=True)
def convolution(ctx: LoweringContext, node: Any, x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    fake, name = node.meta["val"], ops.op_name(node.target)
    if bias is None or not ctx.target_info(str(fake.device)).separate_convolution_bias:
        return call(ctx, fake, name, (x, weight, bias, *rest), template=True)
    alone = call(ctx, fake, name, (x, weight, None, *rest), template=True)
    channel = 0 if bias.size[0] == 1 else axes_of(alone.size)[1]
    term = bias.at((channel,))
    return elementwise(ctx, node, (alone,), lambda product: make("add", product, cast(term, product.dtype)))


@lowers("aten.convolution_backward.default", library=True)
def convolution_backward(ctx: LoweringContext, node: Any, gradient: Any, *rest: Any) -> Any:
    name, fakes = ops.op_name(node.target), node.meta["val"]
    *between, (activation, weight, bias) = rest
    lines = line_gradients(ctx, fakes, (gradient, *rest))
    if lines is not None:
        return lines
    site = depthwise_backward(ctx, (gradient, *rest))
    if site is not None:
        return depthwise_gradients(ctx, site, fakes, (gradient, *rest))
    if bias and ctx.target_info(str(fakes[2].device)).separate_convolution_bias:
        mask = (activation, weight, False)
        made = call(ctx, (*fakes[:2], None), name, (gradient, *between, mask), template=True)
        summed = [d for d in range(gradient.rank) if d != 1]
        return (*made[:2], sum_over(ctx, fakes[2], gradient, summed))
    return call(ctx, fakes, name, (gradient, *rest), template=True)


@lowers(*RANDOM, library=True)
def draw(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> Any:
    return call(ctx, node.meta["val"], ops.op_name(node.target), args, named, ordered=True)


@lowers(*ATTENTION, library=True)
def attention(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> Any:
    facts = ops.facts(node.target)
    draws = facts.is_random and _has_dropout(node.target, args, named)
    return call(ctx, node.meta["val"], facts.name, args, named, template=True, ordered=draws)


def _has_dropout(target: Any, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether a random operator really draws: attention without dropout does not."""
    names = ops.argument_names(target)
    if "dropout_p" not in names:
        return True
    position = names.index("dropout_p")
    return bool(named.get("dropout_p", args[position] if position < len(args) else 0.0) != 0.0)


@lowers(*MATMULS, library=True)
def matmul(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> TensorValue:
    name = ops.op_name(node.target)
    if ctx.template(node.meta["val"]).dtype is None or named.get("out_dtype") is not None:
        raise UnsupportedError("no kernel computes matmuls of these types")
    if name == "aten.addmm.default" and not named and _is_added_later(ctx, node):
        term, a, b = args
        alone = call_out(ctx, node.meta["val"], "aten.mm.out", (a, b))
        return elementwise(ctx, node, (alone, term), lambda p, t: make("add", p, t))
    return call_out(ctx, node.meta["val"], name.replace(".default", ".out"), args, named)


def _is_added_later(ctx: LoweringContext, node: Any) -> bool:
    """Whether what is added to a matmul is better added by the kernels that read the sum: it costs them
    nothing, and the device's library has faster matmuls than sums."""
    if ctx.settings.gemm not in ("library", "known") or ctx.settings.numerics == "eager":
        return False
    readers = ctx.readers.get(node)
    if readers is None or readers.stored or not readers.passes:
        return False
    fake, term = node.meta["val"], node.args[0].meta["val"]
    info = ctx.target_info(str(fake.device))
    if term.dim() == 1:
        if fake.element_size() <= 2:
            return False  # the library's kernels add a bias in their epilogue
        if ctx.sizes.hint(ctx.sizes.index(fake.shape[0])) < info.separate_bias_rows:
            return False
    return info.separate_gemm_add
