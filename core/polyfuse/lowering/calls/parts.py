"""Parts of tensors that operators change: which elements of a buffer they are, and who puts them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch.fx import Node

from polyfuse.ir.nodes import View
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.shapes.views import slice_start, wrap
from polyfuse.lowering.value import TensorValue
from polyfuse.symbolic import IndexLike, is_equal
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import shapes

PUTS_BACK: Final = {
    "aten.slice_scatter.default": "aten.slice.Tensor",
    "aten.select_scatter.default": "aten.select.int",
}
"""Operators that change a part of a tensor, and those that look at the same part."""


def slice_of(view: View, dim: int, begin: IndexLike, step: IndexLike, count: IndexLike) -> View:
    """The elements ``begin + step * i`` of `view` along `dim`, for i below `count`."""
    size, stride = list(view.size), list(view.stride)
    offset = view.offset + begin * stride[dim]
    size[dim], stride[dim] = count, stride[dim] * step
    return View(view.buffer, tuple(size), tuple(stride), offset, view.dtype)


def selected(view: View, dim: int, index: IndexLike) -> View:
    """The elements of `view` at one index of `dim`, which is left out."""
    offset = view.offset + index * view.stride[dim]
    size, stride = ((*of[:dim], *of[dim + 1 :]) for of in (view.size, view.stride))
    return View(view.buffer, size, stride, offset, view.dtype)


def are_one(one: View | None, other: View | None) -> bool:
    """Whether two views are the same elements of one buffer, in the same order."""
    if one is None or other is None or one.buffer != other.buffer or one.dtype is not other.dtype:
        return False
    return (
        len(one.size) == len(other.size)
        and is_equal(one.offset, other.offset)
        and all(
            is_equal(n, m) and (n == 1 or is_equal(s, t))
            for n, m, s, t in zip(one.size, other.size, one.stride, other.stride, strict=True)
        )
    )


def until_whole(ctx: LoweringContext, node: Node, view: View) -> Sequence[Node]:
    """`node`, which changes elements of a buffer or of a part of it, and the calls that put the result back:
    into what that is a part of, and so on up to the whole. Nothing where it is not put back."""
    calls, whole = [node], ctx.buffers[view.buffer].view()
    while back := [user for user in calls[-1].users if _puts_back(user, calls[-1])]:
        base = ctx.env.get(back[0].args[0]) if len(back) == 1 else None
        if not isinstance(base, TensorValue) or base.view is None or base.raw is not None:
            break
        if not are_one(_part(ctx, back[0], base.view), view):
            break
        calls.append(back[0])
        view = base.view
    return calls if are_one(view, whole) else ()


def _puts_back(user: Node, node: Node) -> bool:
    """Whether `user` puts the result of `node` into what `node`'s first argument may be a part of."""
    source = node.args[0]
    if user.op != "call_function" or not isinstance(source, Node) or user.args[1:2] != (node,):
        return False
    look = PUTS_BACK.get(ops.op_name(user.target))
    if look is None or user.args[0] is source:  # the whole is a part of itself
        return look is not None
    is_look = source.op == "call_function" and ops.op_name(source.target) == look
    return is_look and user.args[0] is source.args[0]


def _part(ctx: LoweringContext, node: Node, view: View) -> View | None:
    """The part of `view` that a call changes; None where that is not known yet."""
    if node.kwargs or any(isinstance(a, Node) and a not in ctx.env for a in node.args[2:]):
        return None
    defaults = (0, None, None, 1)
    given: list[Any] = [ctx.env[a] if isinstance(a, Node) else a for a in node.args[2:]]
    given = [ctx.sizes.number(a) if shapes.is_symbolic(a) else a for a in given]
    dim, start, _, step = given + list(defaults[len(given) :])
    at = wrap(dim, len(view.size))
    begin = slice_start(view.size[at], start)
    if begin is None:
        return None
    if ops.base_name(node.target) == "select_scatter":
        return selected(view, at, begin)
    changed: Any = node.args[1]
    return slice_of(view, at, begin, step, ctx.sizes.index(changed.meta["val"].shape[at]))
