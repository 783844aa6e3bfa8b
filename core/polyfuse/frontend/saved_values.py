"""What a forward saves for its backward: computed where what it is made of is at hand, and never computed
anew where it is compared with one of its own numbers.

The partitioner puts calls that it moved out of the backward behind the whole forward, in the order of the
backward. There they keep what they read alive until the end, and are no part of the layer that they belong
to.

The gradient of `amax` goes to the elements that equal the extreme, and is divided by how many these are. Two
kernels that compute one value may differ in its last bit: one of them holds an operand that the other loads
with 16 bits, contracts a product and a sum, or computes a function in fewer terms. No element then equals
the extreme, and the gradient is 0 / 0. So a value that is compared with what was selected of it is computed
once, and both read its memory.

And how much is saved: where it is as much as eager mode saves, some operands of matmuls are computed again.

The split of a joint graph saves an input instead of what follows cheaply from it, such as `buffer.exp()`, and
takes no notice of a `copy_` at the forward's end: the backward would find what the buffer holds by then. So
the old content of inputs that the forward overwrites is saved. What the backward writes to an input goes to
the input itself all the same.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Iterable
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from polyfuse.frontend.describe import alias_root, mutated_placeholders, output_args, output_node
from polyfuse.frontend.rewrites.tools import Rewriting, aten, tensor_value, traced_call
from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import aot, fake, fx, shapes

_SELECTING: Final = frozenset(
    (
        *("amax", "amin", "aminmax", "max", "min", "median", "nanmedian", "kthvalue", "mode"),
        *("sort", "topk", "cummax", "cummin", "linalg_vector_norm", "norm", "max_pool2d_with_indices"),
        *("max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d", "scatter_reduce"),
        *("index_reduce", "segment_reduce"),
    )
)
"""Operators whose results are some of the numbers of their operands. Norms are those of infinite order; of
others, no result equals an operand."""

_COMPARING: Final = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))

_PASSING: Final = frozenset(
    ("clone", "_to_copy", "expand", "abs", "neg", "gather", "index", "index_select", "where", "clamp")
    + ("clamp_min", "clamp_max", "relu")
)
"""Beside views, operators that give some of the numbers of their operands, or compute of them without
rounding."""

_POOLING: Final = {
    **dict.fromkeys(("max_pool2d_with_indices", "adaptive_max_pool2d"), 2),
    **dict.fromkeys(("max_pool3d_with_indices", "adaptive_max_pool3d"), 3),
}
"""Operators whose second result are positions in planes of so many dimensions."""

_NARROW: Final = (torch.int16, torch.int32)

SHARE: Final = 0.85
"""Of what eager mode saves, up to which it does not matter how much a forward saves."""

_MATMULS: Final = (
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.baddbmm.default,
    aten._grouped_mm.default,
)

_COPIES: Final = (aten.clone.default, aten._to_copy.default)


def compute_saved_early(state: Rewriting) -> int:
    """Move the calls at the end of a forward that only its saved results need, behind what they read."""
    nodes = state.nodes() if state.stage == "forward" else []
    positions = {node: position for position, node in enumerate(nodes)}
    moving: set[Node] = set()
    for node in reversed(nodes):
        needed = all(user.op == "output" or user in moving for user in node.users)
        if not needed or not ops.facts(node.target).mergeable:
            break
        moving.add(node)
    # never in front of what writes to memory, or has to be done first
    first = max((positions[node] for node in nodes if not _is_passed(node)), default=-1)
    behind: dict[int, Node] = {}
    count = 0
    for node in nodes[len(nodes) - len(moving) :]:
        position = max(
            (positions[source] for source in node.all_input_nodes if source in positions), default=-1
        )
        if position <= first:
            continue
        # those that are moved to one position stay in order: they may read each other
        last = behind.get(position, nodes[position])
        positions[node] = position
        behind[position] = node
        if last.next is not node:
            if not state.spend():
                break
            for source in node.all_input_nodes:
                if source.op == "get_attr":  # a constant that stands where it was read
                    nodes[0].prepend(source)
            last.append(node)
            count += 1
    return count


def _is_passed(node: Node) -> bool:
    facts = ops.facts(node.target)
    return not (facts.mutates or facts.effects)


def compared_with_selected(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """Calls whose floating-point result is compared with numbers that were selected of it, as the gradient
    of `amax` does, and `x == x.amax()`, seen through views and what else rounds nothing; with the calls that
    select."""
    found: dict[Node, list[Node]] = {}
    for node in nodes:
        if _base(node) not in _SELECTING:
            continue
        roots = _roots(node.all_input_nodes)
        if roots:
            for root in roots & _roots(_compared_with(node)):
                found.setdefault(root, []).append(node)
    return found


def save_compared(joint: GraphModule) -> int:
    """Have the split of a joint graph save such values instead of computing them anew; returns how many. In
    regions that the program has computed anew, what was selected of them is, too."""
    return sum(
        aot.save_or_select_again(value, selecting)
        for value, selecting in compared_with_selected(joint.graph.nodes).items()
    )


def _compared_with(selected: Node) -> set[Node]:
    """The other operands of comparisons that read what was selected."""
    others: set[Node] = set()
    reached, waiting = {selected}, [selected]
    while waiting:
        node = waiting.pop()
        for user in node.users:
            if _base(user) in _COMPARING:
                others.update(other for other in user.all_input_nodes if other is not node)
            elif user not in reached and _passes(user):
                reached.add(user)
                waiting.append(user)
    return others


def _roots(values: Iterable[Node]) -> set[Node]:
    """The calls in floating point that values are made of without any rounding."""
    reached, found = set(values), set()
    waiting = list(reached)
    while waiting:
        node = waiting.pop()
        sources = node.all_input_nodes
        if sources and _passes(node) and not _narrows(node):
            through = sources[1:] if _base(node) == "where" else sources[:1]
            waiting += [source for source in through if source not in reached]
            reached.update(through)
        elif node.op == "call_function" and _is_floating(node):
            found.add(node)
    return found


def _passes(node: Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target is operator.getitem or _base(node) in _PASSING:
        return True
    return ops.facts(node.target).is_view


def _narrows(node: Node) -> bool:
    """Whether a call gives numbers of fewer bits than its operand has."""
    value, source = tensor_value(node), tensor_value(node.all_input_nodes[0])
    return value is None or (source is not None and value.dtype.itemsize < source.dtype.itemsize)


def _is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _base(node: Node) -> str:
    """The name of an operator of ATen without namespace and overload; of others empty."""
    name = ops.op_name(node.target) if node.op == "call_function" else ""
    return name.split(".")[1] if name.startswith("aten.") else ""


def narrow_positions(joint: GraphModule) -> int:
    """Have the split of a joint graph save positions of maxima in as many bits as the planes need that they
    are in, not in 64; returns how many. On devices, whose kernels store them so where they find them.
    """
    count = 0
    for node in list(joint.graph.nodes):
        pooling = node.args[0] if node.target is operator.getitem and node.args[1] == 1 else None
        if pooling is None or _base(pooling) not in _POOLING or not node.users:
            continue
        value, pooled = tensor_value(node), tensor_value(pooling.args[0])
        if value is None or pooled is None or device_of(value.device.type).is_host:
            continue
        elements = math.prod(pooled.shape[-_POOLING[_base(pooling)] :])
        fitting = (d for d in _NARROW if isinstance(elements, int) and elements <= torch.iinfo(d).max)
        dtype = next(fitting, None)
        if dtype is None or not all(map(fx.is_backward, node.users)):
            continue
        narrow = _cast(joint, node, dtype)
        users = [user for user in node.users if user is not narrow]
        wide = _cast(joint, narrow, value.dtype)
        for user in users:
            user.replace_input_with(node, wide)
        count += 1
    return count


def _cast(joint: GraphModule, node: Node, dtype: torch.dtype) -> Node:
    mode = fake.detect_fake_mode((node.meta["val"],))
    with joint.graph.inserting_after(node):
        return traced_call(joint.graph, mode, node, aten._to_copy.default, (node,), {"dtype": dtype})


def bytes_saved_by_eager(joint: GraphModule) -> float | None:
    """Bytes that eager mode's forward leaves for its backward: what autograd's formulas read of it.

    None where nothing is computed on a device, since on the host it was not measured what follows from saving
    less, and where the model says itself what is computed again (checkpoints).

    Args:
        joint: forward and backward as they were traced.
    """
    if any(fx.has_policy(node) for node in joint.graph.nodes):
        return None
    values = [value for value in map(tensor_value, joint.graph.nodes) if value is not None]
    if all(device_of(value.device.type).is_host for value in values):
        return None
    return _bytes(
        node
        for node in joint.graph.nodes
        if not fx.is_backward(node) and any(fx.is_backward(user) for user in node.users)
    )


def bytes_saved(forward: GraphModule, user_outputs: int) -> float:
    """Bytes that a forward leaves for its backward beyond its inputs.

    Args:
        user_outputs: how many results its caller gets; what is saved follows them.
    """
    return _bytes(_saved(forward, user_outputs))


def better_saved(
    forward: GraphModule, backward: GraphModule, user_outputs: int, limit: float
) -> frozenset[str] | None:
    """Names of what a forward saves, without so many operands of the backward's matmuls, the largest first,
    that `limit` bytes are saved. Only those count that are computed element by element from inputs and what
    else is saved, and that nobody else holds. None where fewer bytes are saved as it is, or there are none.

    Args:
        backward: the backward, whose placeholders are called as what was saved.
        user_outputs: how many results the forward's caller gets.
    """
    saved = _saved(forward, user_outputs)
    sizes = _sizes(saved)
    surplus = sum(sizes.values()) - limit
    if surplus <= 0:
        return None
    read = {node.name for node in backward.graph.nodes if node.op == "placeholder" and _is_operand(node)}
    results = {_owner(node) for node in output_args(forward)[:user_outputs] if isinstance(node, Node)}
    operands = {_owner(node) for node in saved if node.name in read} - results
    known: dict[Node, bool] = {}
    again: set[Node] = set()
    for root in sorted(operands & sizes.keys(), key=lambda node: -sizes[node]):
        if surplus > 0 and _follows(root, sizes, known):
            again.add(root)
            surplus -= sizes[root]
    return frozenset(root.name for root in sizes if root not in again) if again else None


def _is_operand(node: Node) -> bool:
    """Whether a matmul reads a value, or a view of it."""
    return any(
        user.target in _MATMULS
        or (user.op == "call_function" and ops.facts(user.target).is_view and _is_operand(user))
        for user in node.users
    )


def _follows(node: Node, saved: Container[Node], known: dict[Node, bool]) -> bool:
    """Whether a value is computed element by element from inputs and others that are saved; what is found is
    noted in `known`.
    """
    if node not in known:
        sources = [_owner(source) for source in node.all_input_nodes]
        known[node] = (
            _is_elementwise(node)
            and bool(sources)
            and all(s.op == "placeholder" or s in saved or _follows(s, saved, known) for s in sources)
        )
    return known[node]


def _is_elementwise(node: Node) -> bool:
    return node.op == "call_function" and (node.target in _COPIES or ops.facts(node.target).pointwise)


def _saved(forward: GraphModule, user_outputs: int) -> list[Node]:
    return [node for node in output_args(forward)[user_outputs:] if isinstance(node, Node)]


def _bytes(nodes: Iterable[Node]) -> float:
    return sum(_sizes(nodes).values())


def _sizes(nodes: Iterable[Node]) -> dict[Node, float]:
    """Bytes of the memory that tensors lie in; inputs and views of them have none of their own."""
    sizes: dict[Node, float] = {}
    env = None
    for node in nodes:
        root = _owner(node)
        value = tensor_value(root)
        if root.op == "call_function" and value is not None:
            env = env or fake.shape_env_of(fake.detect_fake_mode([value]))
            sizes[root] = float(shapes.hint(env, value.numel(), 1) * value.itemsize)
    return sizes


def _owner(node: Node) -> Node:
    """The tensor whose storage `node` may share, which can be one of several results of a call."""
    while (root := alias_root(node)) is not node and tensor_value(root) is None:
        source = node.all_input_nodes[0]
        if tensor_value(source) is None:
            return node
        node = source
    return root


def copy_overwritten(forward: GraphModule, backward: GraphModule, user_outputs: int) -> int:
    """Save copies of inputs, and of views of them, that the forward writes to; returns how many there are.

    Args:
        forward: the forward, whose outputs behind the first `user_outputs` are saved for the backward.
        backward: the backward, whose placeholders are called as what was saved. One that it writes to stays
            the input; if it is read as well, the copy is saved besides.
        user_outputs: how many results the forward's caller gets.
    """
    written = set(mutated_placeholders(forward))
    if not written:
        return 0
    targets = {node.name: node for node in mutated_placeholders(backward)}
    copies: dict[Node, Node] = {}
    outputs = list(output_args(forward))
    first = outputs[user_outputs] if user_outputs < len(outputs) else None
    besides: list[Node] = []
    for position, saved in enumerate(outputs[user_outputs:], user_outputs):
        if not isinstance(saved, Node) or alias_root(saved) not in written or not _is_tensor(saved):
            continue
        target = targets.get(saved.name)
        if target is not None and not _readers(target):
            continue
        if saved not in copies:
            copies[saved] = _copied(forward, saved)
        if target is None:
            outputs[position] = copies[saved]
        else:
            _read_from(backward, target, before=first)
            besides.append(copies[saved])
    if copies:
        # AOTAutograd counts what is saved: tensors come first among the outputs, and in one order with inputs
        outputs[user_outputs:user_outputs] = besides
        output_node(forward).args = (tuple(outputs),)
        forward.recompile()
        backward.recompile()
    return len(copies)


def _readers(target: Node) -> list[Node]:
    """What reads an input of the backward, apart from the writes to it at the end."""
    return [
        user
        for user in target.users
        if not (user.target is torch.ops.aten.copy_.default and user.args[0] is target and not user.users)
    ]


def _read_from(backward: GraphModule, target: Node, before: Any) -> None:
    """Have everything but writes read the copy of an input, a new placeholder in front of that which is
    called as `before`."""
    front = next(n for n in backward.graph.nodes if n.op == "placeholder" and n.name == before.name)
    with backward.graph.inserting_before(front):
        copy = backward.graph.placeholder(f"{target.name}_before")
    copy.meta = dict(target.meta)
    for user in _readers(target):
        user.replace_input_with(target, copy)


def _is_tensor(saved: Node) -> bool:
    return isinstance(saved.meta.get("val"), torch.Tensor)


def _copied(forward: GraphModule, saved: Node) -> Node:
    """A copy with the same strides, made where the value is."""
    value = saved.meta["val"]
    operator = torch.ops.aten.clone.default
    with forward.graph.inserting_after(saved if saved.op != "placeholder" else _last_placeholder(forward)):
        copy = forward.graph.call_function(operator, (saved,))
    copy.meta = dict(saved.meta)
    copy.meta["val"] = fake.fake_evaluate(fake.detect_fake_mode((value,)), operator, (value,), {})
    return copy


def _last_placeholder(forward: GraphModule) -> Node:
    return [n for n in forward.graph.nodes if n.op == "placeholder"][-1]
