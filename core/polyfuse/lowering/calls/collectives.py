"""Communication with other processes: collectives that are started, and waits for them.

What a collective computes in its operand's memory (sums over processes, broadcasts) is written to memory
of the graph's own: that of the operand where nobody needs it any more, else that of a copy, which whoever
computes the operand can write as well. A result is one buffer from start to end: to wait for it makes no
other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from polyfuse.ir.communication import Running
from polyfuse.ir.expr import loads
from polyfuse.ir.graph import reads
from polyfuse.ir.nodes import Collective, ExternCall, Opaque, View, Wait
from polyfuse.lowering.calls.extern import argument, call
from polyfuse.lowering.calls.overwriting import free_storage, is_dying
from polyfuse.lowering.context import LoweringContext, tensors_in
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue
from polyfuse.symbolic import contiguous_strides, product
from polyfuse.torch_compat import ops

IN_PLACE = ("all_reduce", "broadcast", "all_reduce_coalesced")
"""They have a form that writes its results over its operands."""

OTHERS = (
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_to_all_single",
)
"""They make their results. Those of their forms that write to given memory are not for every kind of group:
groups written in Python do without them.
"""

PAIRWISE = ("isend", "irecv", "batch_p2p_ops")
"""Their results are their operands."""

_EXCHANGE = "polyfuse_symmetric.exchange.default"
_OPERAND = "polyfuse_symmetric.operand.default"


def _names(short: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"_c10d_functional.{name}.default" for name in short)


@lowers(*_names(IN_PLACE), library=True)
def in_place(ctx: LoweringContext, node: Node, *args: Any, **kwargs: Any) -> Any:
    """The in-place form, on memory that may be written to."""
    operands, *rest = _positional(node, args, kwargs)
    many = isinstance(operands, (tuple, list))
    fakes = node.meta["val"]
    pairs = zip(operands, fakes, strict=True) if many else ((operands, fakes),)
    if any(value.dtype is None for value in tensors_in(operands)):
        return others(ctx, node, operands, *rest)
    results = [_own(ctx, node, value, ctx.template(fake)) for value, fake in pairs]
    views = tuple(_contiguous_view(result) for result in results)
    for view in views:
        ctx.before_write(view.buffer)
    op = ops.op_name(node.target).removesuffix(".default") + "_.default"
    ctx.emit(
        Collective(
            ctx.fresh("collective"),
            op,
            (views if many else views[0], *(argument(ctx, value) for value in rest)),
            (),
            (),
            out="none",
            mutates=tuple(view.buffer for view in views),
            origins=ctx.origins,
            group=_group(ctx, rest[-1]),
        )
    )
    for result, view in zip(results, views, strict=True):
        if not result.faithful:
            # who needs the traced strides copies it, and could do that too early
            wait_for(ctx, view)
    return tuple(results) if many else results[0]


@lowers(*_names(OTHERS), library=True)
def others(ctx: LoweringContext, node: Node, *args: Any, **kwargs: Any) -> Any:
    """The operator as it is, which makes its results."""
    given = _positional(node, args, kwargs)
    return _call(ctx, node, given, False)


@lowers(*_names(PAIRWISE), library=True)
def pairwise(ctx: LoweringContext, node: Node, *args: Any, **kwargs: Any) -> Any:
    """Messages between two processes."""
    return _call(ctx, node, _positional(node, args, kwargs), True)


@lowers("_dtensor.shard_dim_alltoall.default", library=True)
def blocking(ctx: LoweringContext, node: Node, *args: Any, **kwargs: Any) -> Any:
    """A collective that is complete when it returns."""
    result = _call(ctx, node, _positional(node, args, kwargs), False)
    wait_for(ctx, result.view)
    return result


@lowers("polyfuse_symmetric.all_reduce.default", library=True)
def summed(ctx: LoweringContext, node: Node, x: Any, kind: str, group: str) -> Any:
    """A sum over processes in new memory, complete when it returns."""
    given = (_laid_out(ctx, x), kind, group)
    made = call(ctx, node.meta["val"], ops.op_name(node.target), given, group=_group(ctx, group))
    wait_for(ctx, made.view)
    return made


@lowers(_EXCHANGE, library=True)
def exchanged(ctx: LoweringContext, node: Node, x: TensorValue, slot: int, first: bool, group: str) -> Any:
    """What the other process has, in memory that it knows; complete when it returns. The result of the last
    exchange of the group holds nothing any more, nor does its operand if that was made in memory of the
    exchange.
    """
    name = _group(ctx, group)
    ours = [n for n in ctx.nodes if isinstance(n, Collective) and n.group == name]
    before = [n for n in ours if n.op == _EXCHANGE][-1:]
    ended = [buffer for n in before for buffer in n.outputs]
    ended += [b for n in ours if n.op == _OPERAND for b in n.outputs if before and b in reads(before[0])]
    for buffer in ended:
        ctx.before_write(buffer)
    ctx.realize(x, "is sent")
    operand = _laid_out(ctx, x)
    if _made_there(ctx, node, operand, (slot, first, group), before):
        first = False
    given = (operand, slot, first, group)
    made = call(ctx, node.meta["val"], _EXCHANGE, given, group=name, ends=ended)
    wait_for(ctx, made.view)
    return made


def _made_there(
    ctx: LoweringContext,
    node: Node,
    operand: TensorValue,
    how: tuple[Any, ...],
    before: Sequence[Collective],
) -> bool:
    """Have a library call that makes an operand write it to memory of the exchange. That belongs to nobody:
    the exchange before this one is over, and with it what was read of the one before that.

    Args:
        how: slot, whether it is the first one, and group.
        before: the last exchange of the group.
    """
    view, source = operand.view, node.args[0]
    assert view is not None and isinstance(source, Node)
    buffer = ctx.buffers[view.buffer]
    whole = view.offset == 0 and view.dtype is None and product(view.size) == buffer.numel
    whole = whole and _has_strides(buffer.view(), contiguous_strides(buffer.size))
    # what adds up reads it, and nobody after that
    later = any(user is not node and user not in node.users for user in source.users)
    if later or not whole or not is_dying(ctx, buffer.name, (source,)):
        return False
    writers = [at for at, made in enumerate(ctx.nodes) if buffer.name in made.writes()]
    if len(writers) != 1:
        return False
    maker, since = ctx.nodes[writers[0]], ctx.nodes[writers[0] :]
    if not isinstance(maker, ExternCall) or maker.out != "out" or maker.kwargs:
        return False
    if any(made in before or buffer.name in reads(made) for made in since):
        return False
    first = len(ctx.nodes)
    given = (buffer.size, operand.torch_dtype, torch.device(buffer.device), *how)
    args = tuple(argument(ctx, value) for value in given)
    ctx.emit(
        Collective(
            ctx.fresh("call"),
            _OPERAND,
            args,
            (),
            (buffer.name,),
            aliases=(buffer.name,),
            origins=ctx.origins,
            group=_group(ctx, how[-1]),
        )
    )
    wait_for(ctx, view)
    made = ctx.nodes[first:]
    del ctx.nodes[first:]
    ctx.nodes[writers[0] : writers[0]] = made
    return True


@lowers(ops.WAIT_TENSOR, view=True)
def wait(ctx: LoweringContext, node: Node, value: TensorValue) -> TensorValue:
    """Wait for what `value` is stored in, or reads while it is an expression: a view of a result."""
    for view in _behind(ctx, value):
        wait_for(ctx, view)
    return value


def wait_for(ctx: LoweringContext, view: View) -> None:
    """Wait for the collectives that write a buffer; also where they were started elsewhere."""
    ended = Running(ctx.nodes).of((view.buffer,))
    written = dict.fromkeys((view.buffer, *(name for c in ended for name in c.writes())))
    held = dict.fromkeys(name for c in ended for name in reads(c) if name not in written)
    ctx.emit(
        Wait(
            ctx.fresh("wait"),
            ops.WAIT_TENSOR,
            (view,),
            (),
            (),
            out="none",
            mutates=tuple(written),
            origins=ctx.origins,
            holds=tuple(held),
        )
    )


def _behind(ctx: LoweringContext, value: TensorValue) -> tuple[View, ...]:
    if value.view is not None:
        return (ctx.buffers[value.view.buffer].view(),)
    assert value.body is not None
    names = dict.fromkeys(e.buffer for e in loads(value.body))
    return tuple(ctx.buffers[name].view() for name in names)


def _positional(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """All arguments in the order of the schema."""
    return [*args, *(kwargs[name] for name in ops.argument_names(node.target)[len(args) :])]


def _group(ctx: LoweringContext, value: Any) -> str:
    """The group's name, or the key under which the graph holds it."""
    text = argument(ctx, value)
    return text.key if isinstance(text, Opaque) else str(text)


def _call(ctx: LoweringContext, node: Node, given: list[Any], aliases: bool) -> Any:
    exact = [_laid_out(ctx, value) for value in given]
    op, group = ops.op_name(node.target), _group(ctx, given[-1])
    return call(ctx, node.meta["val"], op, exact, aliases=aliases, group=group)


def _laid_out(ctx: LoweringContext, value: Any) -> Any:
    """An argument with its tensors row-major in memory, as collectives want them."""
    if isinstance(value, (tuple, list)):
        return tuple(_laid_out(ctx, item) for item in value)
    if not isinstance(value, TensorValue) or value.dtype is None:
        return value
    result = TensorValue(
        value.dtype, value.torch_dtype, value.device, value.size, contiguous_strides(value.size)
    )
    result.set_view(_contiguous(ctx, value))
    return result


def _contiguous(ctx: LoweringContext, value: TensorValue) -> View:
    """What `value` holds, row-major."""
    stride = contiguous_strides(value.size)
    if value.view is not None and value.raw is None and _has_strides(value.view, stride):
        return value.view
    result = ctx.temporary(value.kernel_type, value.device, value.size)
    result.torch_dtype = value.torch_dtype
    ctx.stored(result, stride)
    assert result.view is not None
    ctx.write(value, result.view)
    return result.view


def _has_strides(view: View, stride: tuple[Any, ...]) -> bool:
    return all(n == 1 or s == t for n, s, t in zip(view.size, view.stride, stride, strict=True))


def _own(ctx: LoweringContext, node: Node, value: TensorValue, result: TensorValue) -> TensorValue:
    """`result` holding what `value` does, row-major in memory that may be written to."""
    stride = contiguous_strides(value.size)
    target = TensorValue(value.dtype, value.torch_dtype, value.device, value.size, stride)
    view = free_storage(ctx, node, value, target, value.kernel_type)
    if view is None:
        ctx.stored(target, stride)
        assert target.view is not None
        view = target.view
        ctx.write(value, view)
    result.set_view(view)
    return result


def _contiguous_view(result: TensorValue) -> View:
    assert result.view is not None
    return result.view
