"""Views: another look at the same elements. Of a stored value a new window, of a lazy one another index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import bitcast, loads
from polyfuse.ir.nodes import View
from polyfuse.ir.types import DType
from polyfuse.lowering.calls.extern import call
from polyfuse.lowering.calls.fallback import call_operator
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.index_checks import check_number
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.symbolic import (
    IndexLike,
    coefficient,
    free_axes,
    is_equal,
    is_less,
    is_nonnegative,
    storage_size,
    substitute,
)
from polyfuse.symbolic.index import atoms
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import shapes

_LONG_RUN = 32
"""Neighbouring points for which an index that is the same at all of them may be divided."""
_FEW_TURNS = 2
"""How often a remainder may begin anew where backends cut loops there."""

IndexMap = Callable[[Sequence[IndexLike]], Sequence[IndexLike]]
"""From the indices of a view to those of what it looks at."""


def look(ctx: LoweringContext, node: Any, value: TensorValue, back: IndexMap | None) -> TensorValue:
    """The view that `node` makes of `value`; `back` maps its indices to the value's. Without `back` only
    torch's own layout of the view can tell, so the value must be stored as traced."""
    return look_at(ctx, node.meta["val"], value, back, run=ctx.readers[node].run)


def look_at(
    ctx: LoweringContext,
    fake: torch.Tensor,
    value: TensorValue,
    back: IndexMap | None,
    *,
    knows_offset: bool = True,
    run: int = 0,
) -> TensorValue:
    """`look` for one of several results of a node.

    Args:
        knows_offset: whether the traced offset has a value.
        run: for how many neighbouring points its readers read one number of it, at least.
    """
    result = ctx.template(fake)
    if len(result.stride) != result.rank or fake.is_conj() or fake.is_neg():
        raise UnsupportedError("no kernel reads views of tensors without plain strides")
    if back is None:
        ctx.realize_exact(value, "its view needs the traced layout")
    if value.view is not None:
        if back is None or (knows_offset and value.faithful and value.dtype is result.dtype):
            offset = value.view.offset + (result.offset - value.offset)
            view = View(value.view.buffer, result.size, result.stride, offset, value.view.dtype)
            result.set_view(view, value.raw)
            return result
        window = _window(value.view, result.size, back)
        if window is not None:
            result.set_view(window, value.raw)
            return result
    assert back is not None
    body = value.at(back(axes_of(result.size)))
    turns = _FEW_TURNS if ctx.target_info(value.device).loops_by_ranges else 0
    wide = 0 < _LONG_RUN <= run and ctx.target_info(value.device).column_bytes > 0
    if value.body is not None and _splits(body, turns) and not _splits(value.body, turns) and not wide:
        # dividing indices at every element costs more than storing the value and looking at it anew
        ctx.realize(value, "its view divides indices")
        if value.faithful:
            return look_at(ctx, fake, value, back, knows_offset=knows_offset)
        body = value.at(back(axes_of(result.size)))
    result.body = body
    result.origins = ctx.origins
    return result


def _window(view: View, size: tuple[IndexLike, ...], back: IndexMap) -> View | None:
    """The strided window that an index map makes of a strided window, if it is one."""
    index = view.offset
    for position, stride in zip(back(axes_of(size)), view.stride, strict=True):
        index = index + position * stride
    strides: list[IndexLike] = []
    for d, n in enumerate(size):
        factor = 0 if n == 1 else coefficient(index, f"i{d}")
        if factor is None:
            return None
        strides.append(factor)
    offset = substitute(index, {f"i{d}": 0 for d in range(len(size))})
    if free_axes(offset) or any(free_axes(s) for s in strides):
        return None
    return View(view.buffer, size, tuple(strides), offset, view.dtype)


def _splits(body: Any, turns: int) -> bool:
    """Whether a load's address divides an axis variable; a remainder that begins anew at most `turns` times
    is no division.
    """
    for element in loads(body):
        for atom in atoms(element.index):
            if atom.kind in ("floordiv", "mod") and free_axes(atom.args[0]):
                value, by = atom.args
                if atom.kind == "floordiv" or not is_nonnegative((turns + 1) * by - 1 - value):
                    return True
    return False


def wrap(dim: int, rank: int) -> int:
    """A dimension counted from the front. A tensor without dimensions counts as one that has one."""
    if rank == 0 and dim not in (0, -1):
        # torch's shape functions let some operators pass
        raise UnsupportedError("eager mode refuses a dimension that is not there")
    return dim + max(rank, 1) if dim < 0 else dim


@lowers(
    "aten.alias.default",
    "aten.detach.default",
    "aten.lift_fresh.default",
    "aten.view_of.default",
    "prims.view_of.default",
    view=True,
)
def alias(ctx: LoweringContext, node: Any, value: TensorValue) -> TensorValue:
    return value


@lowers("aten.permute.default", view=True)
def permute(ctx: LoweringContext, node: Any, value: TensorValue, dims: Sequence[int]) -> TensorValue:
    order = [wrap(d, value.rank) for d in dims]
    source = {d: k for k, d in enumerate(order)}
    return look(ctx, node, value, lambda axes: [axes[source[d]] for d in range(value.rank)])


@lowers("aten.transpose.int", "aten.t.default", "aten.numpy_T.default", "aten.swapaxes.default", view=True)
def transpose(ctx: LoweringContext, node: Any, value: TensorValue, a: int = 0, b: int = 1) -> TensorValue:
    if value.rank < 2:
        return alias(ctx, node, value)
    order = list(range(value.rank))
    a, b = wrap(a, value.rank), wrap(b, value.rank)
    order[a], order[b] = b, a
    return permute(ctx, node, value, order)


@lowers("aten.expand.default", view=True)
def expand(
    ctx: LoweringContext, node: Any, value: TensorValue, size: Any, *, implicit: bool = False
) -> TensorValue:
    lead = len(size) - value.rank
    return look(
        ctx, node, value, lambda axes: [0 if n == 1 else axes[lead + d] for d, n in enumerate(value.size)]
    )


@lowers(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten._reshape_alias.default",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.unsqueeze.default",
    "aten.unflatten.int",
    "aten.flatten.using_ints",
    view=True,
)
def reshape(ctx: LoweringContext, node: Any, value: TensorValue, *_: Any) -> TensorValue:
    new = ctx.sizes.sizes(node.meta["val"].shape)
    return look(ctx, node, value, lambda axes: reshape_indices(axes, new, value.size))


def reshape_indices(
    indices: Sequence[IndexLike], new: Sequence[IndexLike], old: Sequence[IndexLike]
) -> list[IndexLike]:
    """Where the element at `indices` of a shape `new` lies in a shape `old` of as many elements.

    Runs of dimensions with equal products are matched, so that only those that are really joined or split
    meet a division.
    """
    result: list[IndexLike] = []
    n = o = 0
    while o < len(old):
        if n < len(new) and is_equal(new[n], old[o]):
            result.append(indices[n])
            n, o = n + 1, o + 1
            continue
        if old[o] == 1:
            result.append(0)
            o += 1
            continue
        if n < len(new) and new[n] == 1:
            n += 1
            continue
        n_end, o_end = _run(new, old, n, o)
        flat: IndexLike = 0
        for k in range(n, n_end):
            flat = flat * new[k] + indices[k]
        result.extend(_unflatten(flat, old[o:o_end]))
        n, o = n_end, o_end
    return result


def _run(new: Sequence[IndexLike], old: Sequence[IndexLike], n: int, o: int) -> tuple[int, int]:
    """Ends of the shortest runs from `n` and `o` on with the same product; the ends of the shapes if none is
    known."""
    products: dict[IndexLike, int] = {}
    total: IndexLike = 1
    for k in range(n, len(new)):
        total = total * new[k]
        products.setdefault(total, k + 1)
    total = 1
    for k in range(o, len(old)):
        total = total * old[k]
        if total in products and total != 1:
            return products[total], k + 1
    return len(new), len(old)


def _unflatten(flat: IndexLike, size: Sequence[IndexLike]) -> list[IndexLike]:
    if len(size) == 1:
        return [flat]
    result: list[IndexLike] = []
    rest = flat
    for n in reversed(size[1:]):
        result.append(0 if n == 1 else rest % n)
        rest = rest if n == 1 else rest // n
    result.append(rest)
    return result[::-1]


@lowers("aten.select.int", view=True)
def select(ctx: LoweringContext, node: Any, value: TensorValue, dim: int, index: Any) -> TensorValue:
    dim = wrap(dim, value.rank)
    found: IndexLike
    if is_nonnegative(index):
        found = index
    elif is_nonnegative(-1 - index):
        found = index + value.size[dim]
    elif is_less(0, value.size[dim]):
        # only data tell whether it counts from the end; tracing gives the offset a symbol without a value
        check_number(ctx, node, index, value, dim)
        found = index % value.size[dim]
        return look_at(ctx, node.meta["val"], value, _at(dim, found), knows_offset=False)
    else:
        raise UnsupportedError("no kernel selects along a dimension that may have no elements")
    return look(ctx, node, value, _at(dim, found))


@lowers("aten.slice.Tensor", view=True)
def slice_(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> TensorValue:
    dim = wrap(dim, value.rank)
    if _names_a_size(node):
        fake, args = node.meta["val"], (value, dim, start, end, step)
        found: TensorValue = call(ctx, fake, "aten.slice.Tensor", args, aliases=True)
        return found
    begin = slice_start(value.size[dim], start)
    if begin is None:
        return look(ctx, node, value, None)
    return look(
        ctx, node, value, lambda axes: [a * step + begin if d == dim else a for d, a in enumerate(axes)]
    )


def _names_a_size(node: Any) -> bool:
    """Whether the size of a slice is a name of its own, for only data tell where the slice ends: eager mode's
    slice says what it is."""
    made = node.meta.get("unbacked_bindings") or ()
    return any(s in made for n in node.meta["val"].shape for s in shapes.unbacked_symbols(n))


def slice_start(size: IndexLike, start: Any) -> IndexLike | None:
    """The first element of a slice, as Python counts; None where its sign is not known."""
    if start is None:
        return 0
    if not is_nonnegative(start):
        if not is_nonnegative(-1 - start):
            return None
        start = start + size
        if not is_nonnegative(start):
            return max(start, 0) if isinstance(start, int) else None
    return start


@lowers(
    "aten.split_with_sizes.default", "aten.split.Tensor", "aten.unbind.int", "aten.chunk.default", view=True
)
def split(
    ctx: LoweringContext, node: Any, value: TensorValue, *args: Any, **kwargs: Any
) -> tuple[TensorValue, ...]:
    unbinds = ops.base_name(node.target) == "unbind"
    position = 0 if unbinds else 1
    dim = wrap(kwargs.get("dim", args[position] if len(args) > position else 0), value.rank)
    results: list[TensorValue] = []
    start: IndexLike = 0
    for fake in node.meta["val"]:
        results.append(look_at(ctx, fake, value, _at(dim, start) if unbinds else _from(dim, start)))
        start = start + (1 if unbinds else ctx.sizes.index(fake.shape[dim]))
    return tuple(results)


def _at(dim: int, index: IndexLike) -> IndexMap:
    return lambda axes: [*axes[:dim], index, *axes[dim:]]


def _from(dim: int, start: IndexLike) -> IndexMap:
    return lambda axes: [a + start if d == dim else a for d, a in enumerate(axes)]


@lowers("aten.diagonal.default", view=True)
def diagonal(
    ctx: LoweringContext, node: Any, value: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorValue:
    a, b = wrap(dim1, value.rank), wrap(dim2, value.rank)

    def back(axes: Sequence[IndexLike]) -> list[IndexLike]:
        rest = iter(axes[:-1])
        along = {a: axes[-1] - min(offset, 0), b: axes[-1] + max(offset, 0)}
        return [along[d] if d in along else next(rest) for d in range(value.rank)]

    return look(ctx, node, value, back)


@lowers("aten.unfold.default", view=True)
def unfold(
    ctx: LoweringContext, node: Any, value: TensorValue, dim: int, size: int, step: int
) -> TensorValue:
    if value.rank == 0:
        return look(ctx, node, value, lambda axes: [])
    dim = wrap(dim, value.rank)
    return look(
        ctx,
        node,
        value,
        lambda axes: [a * step + axes[-1] if d == dim else a for d, a in enumerate(axes[:-1])],
    )


@lowers("aten.as_strided.default", view=True)
def as_strided(
    ctx: LoweringContext, node: Any, value: TensorValue, size: Any, stride: Any, storage_offset: Any = None
) -> TensorValue:
    result = look(ctx, node, value, None)
    assert result.view is not None
    buffer = ctx.buffers[result.view.buffer]
    end = result.view.offset + storage_size(result.size, result.stride)
    if is_nonnegative(result.view.offset) and is_nonnegative(buffer.storage - end):
        return result
    # eager mode's operator knows how much memory there is before and behind, and refuses what is beyond
    seen: TensorValue = call_operator(
        ctx, node.target, node.meta["val"], (value, size, stride, storage_offset), {}, fallback=False
    )
    return seen


@lowers("aten.view.dtype", view=True)
def view_dtype(ctx: LoweringContext, node: Any, value: TensorValue, dtype: torch.dtype) -> TensorValue:
    result = ctx.template(node.meta["val"])
    old, new = value.dtype, result.dtype
    if old is new and old is not None:
        return value
    if value.torch_dtype.itemsize != dtype.itemsize or not (_is_computed(old) and _is_computed(new)):
        # a view costs nothing, and the bits of NaN survive no detour through a wider type
        seen: TensorValue = call_operator(
            ctx, node.target, node.meta["val"], (value, dtype), {}, fallback=False
        )
        return seen
    assert old is not None and new is not None
    if value.view is not None and value.faithful and value.raw is None:
        view = value.view
        result.set_view(View(view.buffer, view.size, view.stride, view.offset, new), old)
        return result
    result.body = bitcast(value.at(axes_of(value.size)), new)
    result.origins = ctx.origins
    return result


def _is_computed(dtype: DType | None) -> bool:
    return dtype is not None and not dtype.is_storage and dtype is not DType.bool


@lowers("aten.flip.default")
def flip(ctx: LoweringContext, node: Any, value: TensorValue, dims: Sequence[int]) -> TensorValue:
    flipped = [wrap(d, value.rank) for d in dims]
    axes = axes_of(value.size)
    body = value.at([value.size[d] - 1 - a if d in flipped and a != 0 else a for d, a in enumerate(axes)])
    return ctx.lazy(node.meta["val"], body)


@lowers("aten.repeat.default")
def repeat(ctx: LoweringContext, node: Any, value: TensorValue, repeats: Sequence[Any]) -> TensorValue:
    result = ctx.template(node.meta["val"])
    axes = axes_of(result.size)
    lead = result.rank - value.rank
    indices = [0 if n == 1 else axes[lead + d] % n for d, n in enumerate(value.size)]
    return ctx.lazy(result, value.at(indices))
