"""Whether an operand's storage may be written to, instead of a copy: nobody needs what it holds any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from torch.fx import Node
from torch.fx.node import map_arg

from polyfuse.ir.communication import Running
from polyfuse.ir.expr import loads
from polyfuse.ir.nodes import Buffer, ExternCall, View
from polyfuse.ir.types import DType
from polyfuse.lowering.calls.parts import PUTS_BACK, until_whole
from polyfuse.lowering.context import LoweringContext, tensors_in
from polyfuse.lowering.shapes.layout import storage_layout
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.symbolic import is_equal, product
from polyfuse.torch_compat import ops

FUNCTIONAL_CALLS = (
    "higher_order.auto_functionalized",
    "higher_order.auto_functionalized_v2",
    "higher_order.triton_kernel_wrapper_functional",
)
"""Operators that call what writes to its arguments, on clones of them: results share no storage with
arguments."""
_WRITE_BACK = "aten.copy_.default"
_SMALL = 4
"""An expression of so many times fewer elements than what it reads is stored, where that would else be
copied."""


def free_storage(
    ctx: LoweringContext, node: Node, base: TensorValue, result: TensorValue, dtype: DType
) -> View | None:
    """Where `node`, which changes some elements of its first argument `base`, may write its `result` in the
    type `dtype`: to the storage of `base`. None where the old content is needed.

    That is storage of this graph's own that is read here for the last time, or that of an input which will
    be overwritten later anyway. `base` may be a part of such an input, if the result is put back there.
    """
    source = node.args[0]
    view = base.view or _behind(ctx, base)
    if view is None or base.raw is not None or not isinstance(source, Node) or _is_given_again(node, source):
        return None
    buffer = ctx.buffers[view.buffer]
    if buffer.name in Running(ctx.nodes).touched():
        return None
    if base.dtype is not result.dtype or buffer.dtype is not dtype or base.device != result.device:
        return None
    whole = view == buffer.view()
    if (whole and not _same_layout(view, result)) or not _is_dense(ctx, buffer.view()):
        return None
    if buffer.kind == "temp":
        if not whole or not is_dying(ctx, buffer.name):
            return None
    else:
        calls = until_whole(ctx, node, view)
        if not calls or not is_replaced(ctx, buffer, calls[-1], calls, _others(ctx, buffer, calls)):
            return None
    others = [v for a in node.all_input_nodes if a is not source for v in tensors_in(ctx.env[a])]
    readers = [value for value in others if _uses(value, buffer.name)]
    if any(value.view is not None for value in readers):
        return None
    for value in readers:
        ctx.realize(value, "reads what it is put into")
    return view


def _is_given_again(node: Node, source: Node) -> bool:
    """Whether the first argument is another one as well, which is read while the first is written to."""
    given: list[Node] = []
    map_arg((node.args[1:], node.kwargs), given.append)
    return source in given


def _behind(ctx: LoweringContext, base: TensorValue) -> View | None:
    """The buffer whose elements an expression is: sums in half precision are accumulated in single precision,
    and rounded only by who stores them."""
    if base.body is None or base.body.op != "load" or base.body.args:
        return None
    buffer = ctx.buffers[base.body.buffer]
    if buffer.size != base.size or buffer.dtype is None or buffer.dtype is not buffer.dtype.compute:
        return None
    view = buffer.view()
    index = view.offset
    for position, stride in zip(axes_of(base.size), view.stride, strict=True):
        index = index + position * stride
    return view if is_equal(base.body.index, index) else None


def is_dying(ctx: LoweringContext, buffer: str, but: Sequence[Node] = ()) -> bool:
    """Whether a buffer is memory that the program allocates, that no operator knows, and that is read now for
    the last time, but for readers of some traced nodes."""
    for made in ctx.nodes:
        if isinstance(made, ExternCall):
            if buffer in made.aliases or (buffer in made.outputs and made.out != "out"):
                return False
    return _readers(ctx, buffer) <= set(but)


def is_replaced(
    ctx: LoweringContext, buffer: Buffer, node: Node, left: Iterable[Node], readers: Set[Node]
) -> bool:
    """Whether a buffer is an input that is overwritten later, and neither its old content nor that which
    `node` would leave there is read after that.

    `left` are the traced nodes that stand for what `node` leaves there, `readers` those traced earlier
    that still need the old content.
    """
    if buffer.kind != "input":
        return False
    owner = ctx.input_nodes.get(buffer.name)
    if owner is None or not _is_written_back(ctx, owner, node) or readers - {owner}:
        return False
    return _stays_inside(left, owner)


def _uses(value: TensorValue, buffer: str) -> bool:
    """Whether a value is stored in a buffer, or reads it while it is an expression."""
    if value.view is not None:
        return value.view.buffer == buffer
    return value.body is not None and any(e.buffer == buffer for e in loads(value.body))


def _same_layout(view: View, result: TensorValue) -> bool:
    return len(view.size) == result.rank and all(
        is_equal(n, m) and (n == 1 or is_equal(s, t))
        for n, m, s, t in zip(view.size, result.size, view.stride, result.stride, strict=True)
    )


def _is_dense(ctx: LoweringContext, view: View) -> bool:
    """Whether no two elements of a whole buffer share memory."""
    return storage_layout(view.size, view.stride, ctx.sizes) == view.stride


def _readers(ctx: LoweringContext, buffer: str) -> set[Node]:
    """Nodes traced earlier whose values are read later and need the content of a buffer."""
    return {
        other
        for other, result in ctx.env.items()
        if ctx.last_use.get(other, -1) > ctx.position
        and any(_uses(value, buffer) for value in tensors_in(result))
    }


def _others(ctx: LoweringContext, buffer: Buffer, calls: Sequence[Node]) -> set[Node]:
    """Nodes traced earlier that need the content of a buffer for more than to be the first argument of one of
    `calls`, and are no small expressions of it, which are stored before it changes."""
    mine = {call.args[0] for call in calls}
    most = ctx.sizes.hint(product(buffer.size)) // _SMALL
    found: set[Node] = set()
    for node in _readers(ctx, buffer.name):
        again = node not in mine or any(user not in ctx.env and user not in calls for user in node.users)
        users = [v for v in tensors_in(ctx.env[node]) if _uses(v, buffer.name)]
        small = all(v.view is None and ctx.sizes.hint(product(v.size)) <= most for v in users)
        if again and not small:
            found.add(node)
    return found


def _is_written_back(ctx: LoweringContext, owner: Node, node: Node) -> bool:
    """Whether all that is left to be done with a graph's input is to overwrite it."""
    left = [user for user in owner.users if user not in ctx.env and user is not node]
    return len(left) == 1 and _overwrites(left[0], owner)


def _overwrites(user: Node, owner: Node) -> bool:
    return (
        user.op == "call_function"
        and ops.op_name(user.target) == _WRITE_BACK
        and user.args[0] is owner
        and user.args[1] is not owner
    )


def _stays_inside(left: Iterable[Node], owner: Node) -> bool:
    """Whether nobody reads a result, or a view of it, after its storage is overwritten: the caller does not
    get it, and no other input does."""
    waiting = list(left)
    seen = set(waiting)
    while waiting:
        for user in waiting.pop().users:
            if user.op != "call_function":
                return False
            if _overwrites(user, owner) or user in seen:
                continue
            facts, name = ops.facts(user.target), ops.op_name(user.target)
            if name in FUNCTIONAL_CALLS:
                continue
            if facts.mutates or facts.is_higher_order:
                return False
            same = facts.is_view or name in ("operator.getitem", ops.WAIT_TENSOR)
            # what was computed in a part of it is put back there, as `x[1:] += 1` does: that is no work
            if same or (name in PUTS_BACK and seen.issuperset(user.args[:2])):
                seen.add(user)
                waiting.append(user)
    return True
