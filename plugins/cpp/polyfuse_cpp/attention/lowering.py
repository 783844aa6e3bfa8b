"""Which calls of attention are computed in matrix registers, by products of pairs or in vectors of f32: those
for which that takes less time than the library's kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import Any, Final

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.nodes import ExternCall, View
from polyfuse.ir.types import DType
from polyfuse.plugin import Lowering, LoweringContext, TensorValue
from polyfuse.symbolic import IndexLike, is_equal
from polyfuse_cpp.attention.expected import Form
from polyfuse_cpp.attention.kernel import attention_kernel
from polyfuse_cpp.isa import choose_isa, has_pair_products
from polyfuse_cpp.onednn.preferences import mkl_leaves_lanes

WIDTHS: Final = range(16, 257)
"""Numbers of a head. Those beyond a multiple of 32 are multiplied as zeros."""
_RANK: Final = 4
_TYPES: Final = (DType.bf16, DType.f32)
_FEW: Final = range(1, 8)
_SOME_QUERIES, _SOME_KEYS = 48, 32
"""Of f32, from which the library's kernel is slower."""
_MANY_SCORES = 1 << 17
"""Scores of f32 from which it is slower though the library uses whole registers."""
_FORMS: Final = {DType.f32: Form.ADDED, DType.bf16: Form.ADDED_BF16}


def attention(
    ctx: LoweringContext,
    node: Any,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    *,
    attn_mask: TensorValue | None = None,
    scale: Any = None,
) -> tuple[TensorValue | None, ...]:
    """Attention, and the logarithms of sums of weights where somebody reads them.

    Args:
        query: (images, heads, queries, width)
        key, value: (images, heads of keys, keys, width)
        attn_mask: (queries, keys), or with four dimensions; those of size one repeat, but for the last one,
            for which the call is the library's.

    Raises:
        UnsupportedError: the library's kernel is faster, or nobody has asked for another one.
    """
    width = _width(ctx, query, key, value)
    if dropout_p != 0.0:
        raise UnsupportedError("attention with dropout is the library's")
    factor = float(width**-0.5 if scale is None else scale)
    form = Form.PLAIN if factor > 0 else Form.SCALED
    if attn_mask is not None:
        form = _form(attn_mask, key.size[2])
    dtype = DType.f32 if query.dtype is DType.f32 else DType.bf16
    kernel = attention_kernel(width, form, ctx.settings, dtype)
    if ctx.packaged:
        kernel.check_built("attention is the library's, for its kernel")
    views = [ctx.realize(operand) for operand in (query, key, value)]
    if any(view.stride[-1] != 1 for view in views):
        raise UnsupportedError("numbers of a head that do not lie side by side are the library's")
    mask = None if attn_mask is None else _by_rows(ctx, attn_mask)
    fakes = node.meta["val"]
    result = ctx.stored(fakes[0])
    is_read = any(reader.args[1:] == (1,) for reader in node.users)
    logs = ctx.stored(fakes[1]) if is_read else None
    made = [ctx.realize(result), *(() if logs is None else (ctx.realize(logs),))]
    given = [*views, views[0] if mask is None else mask, made[0], made[-1]]
    steps = [v.stride[:3] for v in (*views, made[0])]
    steps.insert(3, (0, 0, 0) if mask is None else _mask_steps(mask))
    steps.append((0, 0, 0) if logs is None else made[1].stride)
    sizes = (*query.size[:2], key.size[1], query.size[2], key.size[2])
    more = (struct.unpack("<i", struct.pack("<f", factor))[0], int(bool(is_causal)), int(is_read))
    args = (*given, *sizes, *(step for of in steps for step in of), *more)
    name = ctx.add_object("attention_", kernel)
    written = tuple(view.buffer for view in made)
    ctx.emit(ExternCall(ctx.fresh("call"), name, args, (), written, "into"))
    return result, logs


LOWERINGS: Final = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": Lowering(attention, library=True)
}


def _width(ctx: LoweringContext, *operands: TensorValue) -> int:
    """Numbers of a head."""
    settings = ctx.settings
    if settings.gemm == "library" or settings.numerics == "eager":
        raise UnsupportedError("attention is the library's where matmuls are")
    if not has_pair_products(choose_isa(str(settings.plugin_option("cpp", "isa", "") or ""))):
        raise UnsupportedError("attention is the library's on CPUs without instructions for bf16")
    query = operands[0]
    kinds = {operand.dtype for operand in operands}
    if len(kinds) > 1 or query.dtype not in _TYPES or any(operand.rank != _RANK for operand in operands):
        raise UnsupportedError("attention of other types than bf16 and f32 is the library's")
    if query.dtype is DType.f32 and not _is_long(query, operands[1]):
        raise UnsupportedError(
            "attention of f32 is the library's for few queries, and for few scores where that uses whole"
            " registers"
        )
    width = query.size[-1]
    if not isinstance(width, int) or width not in WIDTHS:
        raise UnsupportedError(f"attention of heads of {width} is the library's")
    if is_equal(query.size[2], 1) and is_equal(query.size[1], operands[1].size[1]):
        raise UnsupportedError("attention of one query for each head of keys is the library's")
    if not _shares_heads(*operands):
        raise UnsupportedError(
            "attention whose heads of keys do not divide those of queries is the library's"
        )
    return width


def _is_long(query: TensorValue, key: TensorValue) -> bool:
    """Whether a kernel of f32 takes less time than the library's: for some queries and keys, and for a few
    that share heads of keys, which the library reads again for each. Where the library uses whole registers,
    for many scores.
    """
    rows, keys = query.size[2], key.size[2]
    if not mkl_leaves_lanes():
        sizes = [*query.size[:3], keys]
        known = [size for size in sizes if isinstance(size, int)]
        return len(known) == len(sizes) and prod(known) >= _MANY_SCORES and rows not in _FEW
    if not isinstance(rows, int) or (rows in _FEW and not is_equal(query.size[1], key.size[1])):
        return True
    return rows >= _SOME_QUERIES and (not isinstance(keys, int) or keys >= _SOME_KEYS)


def _shares_heads(query: TensorValue, key: TensorValue, value: TensorValue) -> bool:
    """Whether as many heads of queries have each head of keys and values."""
    heads, shared = query.size[1], key.size[1]
    if not is_equal(shared, value.size[1]):
        return False
    known = isinstance(heads, int) and isinstance(shared, int) and shared > 0 and heads % shared == 0
    return known or is_equal(heads, shared)


def _form(mask: TensorValue, keys: IndexLike) -> Form:
    if not is_equal(mask.size[-1], keys):
        raise UnsupportedError("attention with a mask of one number for all keys is the library's")
    if mask.dtype not in _FORMS:
        raise UnsupportedError(f"attention with a mask of {mask.torch_dtype} is the library's")
    return _FORMS[mask.dtype]


def _by_rows(ctx: LoweringContext, mask: TensorValue) -> View:
    """A mask, or its copy, whose rows are lines in memory."""
    found = ctx.realize(mask)
    if found.stride[-1] == 1 or mask.dtype is None:
        return found
    rows = ctx.temporary(mask.dtype, mask.device, mask.size)
    return ctx.realize(ctx.lazy(rows, ctx.operand(mask, ctx.axes(rows), mask.dtype, mask.device)))


def _mask_steps(mask: View) -> Sequence[IndexLike]:
    """Strides of images, heads and rows, 0 along which a mask repeats."""
    steps = [0 if is_equal(n, 1) else step for n, step in zip(mask.size, mask.stride, strict=True)][:-1]
    return [0] * (3 - len(steps)) + steps
