"""Which operators are decomposed before lowering, and which are not.

An operator is decomposed when the steps fuse at least as well as a native lowering would. It stays whole
when it maps to a library call (`mm`, `convolution`, attention), when one native loop beats the steps
(`_softmax`, pooling, `cumsum`), or when the steps would draw other random numbers than eager mode does.

The names here are ATen operators; `op` stands for all its overloads. Names that a torch release lacks are
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final

from polyfuse.frontend.decompositions import (
    foreach,
    indexing,
    layouts,
    losses,
    matmuls,
    operators,
    optimizers,
    sampling,
    special,
)
from polyfuse.frontend.decompositions.matmuls import scaled_dot_product_attention
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import decomp


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "arithmetic": _names(
        "addcdiv addcmul addr lerp rsub floor_divide heaviside xlogy special_xlog1py special_entr "
        "special_log_ndtr logaddexp logaddexp2 logit sinc deg2rad rad2deg sgn nan_to_num "
        "isneginf isposinf ldexp.Tensor clamp_min clamp_max threshold mvlgamma float_power "
        "square fill masked_fill "
        "dist lcm.default"
    ),
    "activations": _names(
        "elu_backward gelu gelu_backward glu glu_backward hardshrink hardsigmoid "
        "hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward leaky_relu "
        "leaky_relu_backward log_sigmoid_forward log_sigmoid_backward mish mish_backward _prelu_kernel "
        "_prelu_kernel_backward rrelu_with_noise_backward silu silu_backward softplus "
        "softplus_backward softshrink tanh_backward threshold_backward"
    ),
    "losses": _names(
        "binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits huber_loss "
        "huber_loss_backward l1_loss mse_loss mse_loss_backward multi_margin_loss "
        "nll_loss_forward nll_loss2d_forward smooth_l1_loss soft_margin_loss "
        "soft_margin_loss_backward"
    ),
    "normalisation": _names(
        "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
        "native_batch_norm native_batch_norm_backward _native_batch_norm_legit "
        "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training _batch_norm_with_update "
        "_batch_norm_with_update_functional _batch_norm_no_update batch_norm_backward cudnn_batch_norm "
        "cudnn_batch_norm_backward miopen_batch_norm_backward _fused_rms_norm _fused_rms_norm_backward "
        "renorm _weight_norm_interface _safe_softmax _softmax_backward_data _log_softmax_backward_data "
        "native_dropout_backward"
    ),
    "reductions": _names(
        "all aminmax count_nonzero logsumexp nansum norm linalg_vector_norm std.correction "
        "std_mean.correction sum.default trace"
    ),
    "linear algebra": _names("addmv addbmm dot vdot mv linalg_cross"),
    "views and shapes": _names(
        "_unsafe_view _reshape_alias t transpose expand_as narrow detach expand_copy "
        "diagonal_copy split_with_sizes_copy squeeze_copy t_copy transpose_copy unfold_copy "
        "unsqueeze_copy unbind_copy as_strided_copy view_copy permute_copy squeeze.default squeeze.dim "
        "split.Tensor unsafe_split "
        "unsafe_split_with_sizes unbind stack rot90 pixel_shuffle pixel_unshuffle channel_shuffle "
        "block_diag diag_embed im2col _chunk_cat diagonal_backward unfold_backward "
        "select_backward slice_backward lift narrow_copy "
        "resize_as"
    ),
    "indexing": _names(
        "index_copy isin take _unsafe_index _unsafe_index_put "
        "_unsafe_masked_index_put_accumulate embedding_dense_backward affine_grid_generator "
        "max_unpool2d max_unpool3d"
    ),
    "resampling": _names("upsample_bicubic2d"),
    "creation": _names(
        "arange.default arange.start empty_like eye hann_window linspace logspace new_empty new_full "
        "new_ones new_zeros ones ones_like zero zeros zeros_like tril_indices triu_indices"
    ),
}
"""Operators decomposed the way torch registers it, by family."""

OWN: Final[Mapping[str, Callable[..., Any]]] = {
    "slice_backward": operators.slice_backward,
    "logit": operators.logit,
    "logit_backward": operators.in_opmath(operators.logit_backward),
    "celu": operators.celu,
    "special_log_ndtr": special.log_ndtr,
    "ldexp.Tensor": special.ldexp,
    "fake_quantize_per_tensor_affine_cachemask": special.fake_quantize,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": special.fake_quantize_by_tensors,
    "fake_quantize_per_channel_affine_cachemask": special.fake_quantize_by_channel,
    "frac": operators.frac,
    "sigmoid_backward": operators.in_opmath(operators.sigmoid_backward),
    "softshrink": operators.in_opmath(operators.softshrink),
    "native_dropout": operators.native_dropout,
    "native_layer_norm": operators.native_layer_norm,
    "native_group_norm_backward": operators.native_group_norm_backward,
    "_weight_norm_interface_backward": operators.weight_norm_backward,
    "_efficientzerotensor": operators.zeros_with_memory,
    "slice_scatter": operators.slice_scatter,
    "select_scatter": operators.select_scatter,
    "diagonal_scatter": operators.diagonal_scatter,
    "addmv": matmuls.addmv,
    "embedding_dense_backward": indexing.embedding_dense_backward,
    "angle": layouts.angle,
    **{name: layouts.of_rows(name) for name in ("normal", "poisson", "rrelu_with_noise_functional")},
    "index_add": indexing.index_add,
    "index_fill": indexing.index_fill,
    "index_reduce": indexing.index_reduce,
    "grid_sampler_2d": operators.in_opmath(sampling.grid_sample_2d),
    **{
        f"{margin}_pad{rank}d{suffix}": partial(function, rank=rank, margin=margin)
        for margin in ("reflection", "replication")
        for rank in (2, 3)
        for suffix, function in (("", layouts.edge_pad), ("_backward", layouts.edge_pad_backward))
    },
    "put": indexing.put,
    "take": indexing.take,
    "_unsafe_masked_index": indexing.unsafe_masked_index,
    "max_pool2d_with_indices_backward": partial(indexing.max_pool_backward, rank=2),
    "max_pool3d_with_indices_backward": partial(indexing.max_pool_backward, rank=3),
    "masked_scatter": indexing.masked_scatter,
    "adaptive_max_pool2d_backward": partial(indexing.adaptive_max_pool_backward, rank=2),
    "adaptive_max_pool3d_backward": partial(indexing.adaptive_max_pool_backward, rank=3),
    "smooth_l1_loss_backward": operators.in_opmath(losses.smooth_l1_loss_backward),
    "nll_loss_backward": losses.nll_loss_backward,
    "nll_loss2d_backward": losses.nll_loss_backward,
    "_fused_adam": partial(optimizers.fused_adam, decoupled=False),
    "_fused_adamw": partial(optimizers.fused_adam, decoupled=True),
    "_fused_sgd": optimizers.fused_sgd,
}
"""Operators decomposed in this project's own way."""

OWN_FAST: Final[Mapping[str, Callable[..., Any]]] = {
    "mm.default": matmuls.matmul,
    "bmm.default": matmuls.matmul,
    "addmm.default": matmuls.addmm,
    "baddbmm.default": matmuls.addmm,
}
"""The same under `numerics="fast"` alone: matmuls with a depth of one; a library may round before it adds."""

REAL_ONLY: Final[tuple[str, ...]] = (
    *FAMILIES["arithmetic"],
    *FAMILIES["activations"],
    *FAMILIES["losses"],
    *FAMILIES["reductions"],
    *FAMILIES["linear algebra"],
    *_names("slice_backward slice_scatter select_backward select_scatter diagonal_backward diagonal_scatter"),
    *_names("unfold_backward index_add index_copy index_fill _unsafe_index_put"),
    *_names("sigmoid_backward frac logit_backward celu smooth_l1_loss_backward"),
)
"""Operators that stay whole for complex tensors."""

IN_OPMATH: Final[tuple[str, ...]] = (
    "addcdiv",
    "addcmul",
    "addr",
    "grid_sampler_2d",
    "huber_loss",
    "lerp",
    "linalg_cross",
    "softshrink",
    "special_xlog1py",
    "threshold",
    "xlogy",
)
"""Operators that eager mode computes in float32 for half-precision inputs where torch's decomposition rounds
at each step."""

FLOATING_ONLY: Final[tuple[str, ...]] = ("hardshrink", "upsample_bicubic2d")
"""Decomposed for floating-point inputs alone: eager mode shrinks no others, and uses fixed-point weights for
bytes."""

FAST_ONLY: Final[tuple[str, ...]] = ("native_dropout",)
"""Decomposed torch's way under `numerics="fast"` alone: the steps draw other random numbers than the
operator.
"""

WHOLE: Final[tuple[str, ...]] = _names(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
    "_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d upsample_bicubic2d"
)
"""Operators that torch breaks up before autograd sees them, and which stay whole there: a gradient that
gathers needs no atomic additions, and known sizes make addresses that need no arithmetic on data."""

REPLACED: Final[Mapping[str, Callable[..., Any]]] = {
    "multilabel_margin_loss_forward": losses.multilabel_margin_loss_forward,
    "max_pool1d": operators.max_pool1d,
    "_pad_circular": layouts.pad_circular,
    "scaled_dot_product_attention": scaled_dot_product_attention,
}
"""Operators that torch breaks up before autograd sees them, and whose steps are wrong, computed for types
that eager mode refuses, or slower than they need to be."""


BEFORE_AUTOGRAD: Final[tuple[str, ...]] = tuple(
    dict.fromkeys((*WHOLE, *REPLACED, *FLOATING_ONLY, *IN_OPMATH))
)
"""Operators that torch may break up before autograd sees them, where something else is done here."""


def before_autograd(op: Any) -> Callable[..., Any] | None:
    """What an operator of `BEFORE_AUTOGRAD` becomes there; None if it stays."""
    name = ops.base_name(op)
    if name in FLOATING_ONLY and name not in WHOLE:
        return operators.floating_before_autograd(op, decomp.registered()[op])
    if name in IN_OPMATH:
        return OWN.get(name) or operators.in_opmath(decomp.registered()[op])
    return REPLACED.get(ops.base_name(op)) or operators.with_size(op)


def _first_of(own: Callable[..., Any], theirs: Callable[..., Any] | None) -> Callable[..., Any]:
    """This project's decomposition, and torch's where it declines."""
    if theirs is None:
        return own

    def either(*args: Any, **kwargs: Any) -> Any:
        result = own(*args, **kwargs)
        return theirs(*args, **kwargs) if result is NotImplemented else result

    return either


@lru_cache(maxsize=4)
def decomposition_table(numerics: str = "fast") -> Mapping[Any, Callable[..., Any]]:
    """Overload to decomposition, for `numerics` `"fast"` or `"eager"`."""
    names = [name for family in FAMILIES.values() for name in family]
    if numerics == "fast":
        names.extend(FAST_ONLY)
    table: dict[Any, Callable[..., Any]] = decomp.selected(names)
    for op in decomp.expand_packets(IN_OPMATH):
        if op in table:
            table[op] = operators.in_opmath(table[op])
    for op in decomp.expand_packets(FLOATING_ONLY):
        if op in table:
            table[op] = operators.floating_only(table[op])
    for op in decomp.expand_packets(["linspace"]):
        if op in table:
            table[op] = operators.steps_in_sixteen_bits(table[op])
    own = {**OWN, **OWN_FAST} if numerics == "fast" else OWN
    for name, function in own.items():
        for op in decomp.expand_packets([name]):
            if not ops.is_mutable(op):
                table[op] = _first_of(function, table.get(op))
    for name, laid_out in layouts.LAID_OUT.items():
        for op in decomp.expand_packets([name]):
            if op in table:
                table[op] = laid_out(table[op])
    for op in decomp.expand_packets(REAL_ONLY):
        if op in table:
            table[op] = operators.real_only(table[op])
    table = {op: operators.unless_refused(op, function) for op, function in table.items()}
    table.update(foreach.decompositions())
    return MappingProxyType(table)
