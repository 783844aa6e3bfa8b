"""Small collectives of one kind and group are joined: their operands are packed into one message. Sums over
processes use symmetric memory where the program or an option enabled it for their group.

    wait(all_reduce(x)), of two processes      -> x + what the other one has
    wait(all_reduce(x)), a short one of others -> all_reduce(x), each process reading from all others

The addition is an operator like others: what reads it is fused with it, and no sum is stored for the message
alone. All ranks choose alike: what is chosen follows from the graph and options alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.frontend.describe import mutated_nodes
from polyfuse.frontend.graph import Note
from polyfuse.frontend.rewrites.chunked import CHUNK
from polyfuse.frontend.rewrites.tools import Rewriting, is_contiguous, tensor_value
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.groups import group_of, symmetric_groups

aten = torch.ops.aten

_PREFIX: Final = "_c10d_functional."
_GATHER: Final = f"{_PREFIX}all_gather_into_tensor.default"
_SCATTER: Final = f"{_PREFIX}reduce_scatter_tensor.default"
_SUM: Final = f"{_PREFIX}all_reduce.default"
_WAIT: Final = f"{_PREFIX}wait_tensor.default"

_FURTHEST: Final = 32
"""So many other nodes are moved for one more collective."""

_FUNCTIONAL: Final = frozenset(
    f"_c10d_functional.{name}.default"
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")
)
"""They write to new memory."""


@dataclass
class _Bucket:
    """Collectives that are joined, in order, and what moves with them.

    Attributes:
        members: the collectives.
        moved: what their operands are computed with, and comes before the first one; or what is made of
            their results, and comes after the last one.
        nbytes: of all results or operands, the larger ones.
    """

    members: list[Node]
    moved: set[Node] = field(default_factory=set)
    nbytes: int = 0


def bucket_collectives(state: Rewriting) -> int:
    """Join small collectives: all-gathers where the first one starts, others where the last one does."""
    limit, count = state.settings.bucket_collectives << 20, 0
    if not limit or state.stage == "joint":
        return 0
    done: set[Node] = set()
    for kind in (_GATHER, _SCATTER, _SUM):
        while (bucket := _next_bucket(state, kind, limit, done)) is not None and state.spend():
            done.add(_joined(state, bucket, kind))
            count += 1
    return count


def _next_bucket(state: Rewriting, kind: str, limit: int, done: set[Node]) -> _Bucket | None:
    """The next collectives of a kind to join; what is alone is done."""
    nodes = list(state.graph.nodes)
    index = {node: number for number, node in enumerate(nodes)}
    barriers = [number for number, node in enumerate(nodes) if _is_barrier(node)]
    of_kind = [node for node in nodes if node not in done and _is_candidate(node, kind)]
    for first in of_kind:
        bucket = _Bucket([first], nbytes=_nbytes(first))
        end = next((number for number in barriers if number > index[first]), len(nodes))
        for node in of_kind:
            if not index[first] < index[node] < end or _key(node) != _key(first):
                continue
            if bucket.nbytes + _nbytes(node) > limit:
                break
            more = _hoisted(node, first, index) if kind == _GATHER else _sunk(bucket, node, index)
            if more is not None and len(more) <= _FURTHEST * len(bucket.members):
                bucket.members.append(node)
                bucket.moved |= more
                bucket.nbytes += _nbytes(node)
        if len(bucket.members) > 1:
            return bucket
        done.add(first)
    return None


def _is_candidate(node: Node, kind: str) -> bool:
    if node.op != "call_function" or ops.op_name(node.target) != kind or node.kwargs or CHUNK in node.meta:
        return False
    given, made = tensor_value(node.args[0]), tensor_value(node)
    if given is None or made is None or not all(isinstance(n, int) for n in (*given.shape, *made.shape)):
        return False
    waits = [user.op == "call_function" and ops.op_name(user.target) == _WAIT for user in node.users]
    return bool(waits) and all(waits) and given.dim() > 0 and given.numel() > 0


def _key(node: Node) -> tuple[Any, ...]:
    given = tensor_value(node.args[0])
    assert given is not None
    return given.dtype, given.device, *map(str, node.args[1:])


def _nbytes(node: Node) -> int:
    values = [tensor_value(item) for item in (node.args[0], node)]
    return max(v.numel() * v.element_size() for v in values if v is not None)


def _is_communication(node: Node) -> bool:
    return node.op == "call_function" and ops.op_name(node.target).startswith(_PREFIX)


def _is_barrier(node: Node) -> bool:
    """Whether nothing may be moved across a node."""
    if node.op == "output":
        return True
    if node.op != "call_function" or _is_communication(node):
        return False
    return bool(mutated_nodes(node)) or ops.facts(node.target).effects


def _hoisted(node: Node, first: Node, index: dict[Node, int]) -> set[Node] | None:
    """What must come before the first collective for another one to start there; None: it cannot."""
    found: set[Node] = set()
    open_ones = list(node.all_input_nodes)
    while open_ones:
        item = open_ones.pop()
        if index[item] < index[first] or item in found:
            continue
        if item is first or _is_communication(item) or item.op != "call_function":
            return None
        found.add(item)
        open_ones += item.all_input_nodes
    return found


def _sunk(bucket: _Bucket, node: Node, index: dict[Node, int]) -> set[Node] | None:
    """What is made of results before another collective starts, and must come after it; None: it needs a
    result itself.
    """
    found: set[Node] = set()
    open_ones = [user for member in bucket.members for user in member.users]
    while open_ones:
        item = open_ones.pop()
        if item is node:
            return None
        if index[item] > index[node] or item in found:
            continue
        if _is_communication(item) and ops.op_name(item.target) != _WAIT:
            return None
        found.add(item)
        open_ones += item.users
    return found


def _joined(state: Rewriting, bucket: _Bucket, kind: str) -> Node:
    """Put one collective in place of several; returns it."""
    members = bucket.members
    first, last = members[0], members[-1]
    order = [node for node in state.graph.nodes if node in bucket.moved]
    if kind == _GATHER:
        for node in order:
            first.prepend(node)
    else:
        _move_behind(order, last)
    ranks = 1 if kind == _SUM else int(members[0].args[-2])
    anchor = first if kind == _GATHER else last
    rows = [_as_rows(state, anchor, member.args[0], ranks if kind == _SCATTER else 1) for member in members]
    packed = state.call_before(anchor, aten.cat.default, (rows, 1))
    whole = state.call_before(anchor, first.target, (packed, *first.args[1:]))
    waits = {wait for member in members for wait in member.users}
    earliest = next(node for node in state.graph.nodes if node in waits)
    ready = state.call_before(earliest, earliest.target, (whole,))
    offset = 0
    for member in members:
        value = tensor_value(member)
        assert value is not None
        width = value.numel() // (ranks if kind == _GATHER else 1)
        for wait in list(member.users):
            part = state.call_before(wait, aten.slice.Tensor, (ready, 1, offset, offset + width))
            if kind == _GATHER or state.escapes(wait):
                form = {"memory_format": torch.contiguous_format}
                part = state.call_before(wait, aten.clone.default, (part,), form)
            state.replace(wait, state.call_before(wait, aten.view.default, (part, list(value.shape))))
        offset += width
        state.graph.erase_node(member)
    return whole


def _as_rows(state: Rewriting, anchor: Node, given: Any, rows: int) -> Node:
    """An operand as a matrix: a row for each rank that it is for."""
    value = tensor_value(given)
    assert value is not None and isinstance(given, Node)
    if not is_contiguous(value):
        form = {"memory_format": torch.contiguous_format}
        given = state.call_before(anchor, aten.clone.default, (given,), form)
    return state.call_before(anchor, aten.view.default, (given, [rows, value.numel() // rows]))


def _move_behind(nodes: Sequence[Node], anchor: Node) -> None:
    """Move nodes behind an anchor, as late as the first of the others that read them."""
    own = set(nodes)
    readers = {user for node in nodes for user in node.users} - own
    cursor, item = anchor, anchor.next
    while item not in readers and item.op != "output":
        if item not in own:
            cursor = item
        item = item.next
    for node in nodes:
        cursor.append(node)
        cursor = node


def merge_collectives(state: Rewriting) -> int:
    """Let what waits for the second one of two equal collectives read the result of the first.

    That follows from the graph alone, so that all ranks leave out the same ones.
    """
    if state.stage == "joint":
        return 0
    count = 0
    first: dict[Hashable, Node] = {}
    for node in state.nodes():
        if not _is_wait(node):
            if mutated_nodes(node) and not ops.op_name(node.target).startswith("_c10d_functional."):
                first.clear()  # what was read before a write is not what is read after it
            continue
        start = node.args[0]
        if not isinstance(start, Node) or len(start.users) != 1 or start.kwargs:
            continue
        if start.op != "call_function" or ops.op_name(start.target) not in _FUNCTIONAL:
            continue
        key = start.target, tuple(start.args)
        earlier = first.setdefault(key, node)
        if earlier is node or state.escapes(node) or not state.spend():
            continue
        state.replace(node, earlier)
        state.graph.erase_node(start)
        count += 1
    return count


def _is_wait(node: Node) -> bool:
    return ops.op_name(node.target) == ops.WAIT_TENSOR


def symmetric_sums(state: Rewriting) -> int:
    """Have each process add up what others have."""
    # without such a group our operators need not be imported
    if state.stage == "joint" or not symmetric_groups(state.settings.symmetric_memory):
        return 0
    exchanges: dict[str, int] | None = {}
    if any(ops.facts(node.target).is_higher_order for node in state.nodes()):
        # what is called there may exchange too, and take the slots in another order
        exchanges = None
    return sum(_summed(state, node, exchanges) for node in state.nodes() if ops.op_name(node.target) == _SUM)


def _summed(state: Rewriting, start: Node, exchanges: dict[str, int] | None) -> bool:
    from polyfuse.torch_compat import symmetric

    waits, x = list(start.users), tensor_value(start.args[0])
    if x is None or start.kwargs or start.args[1] != "sum" or len(waits) != 1:
        return False
    group = str(start.args[2])
    if ops.op_name(waits[0].target) != ops.WAIT_TENSOR or not symmetric.is_supported(x, group):
        return False
    nbytes = x.numel() * x.element_size()
    if exchanges is not None and _added(state, start, waits[0], nbytes, exchanges):
        return True
    if nbytes > symmetric.LARGEST_SUM or not state.spend():
        return False
    call = state.call_before(start, symmetric.ALL_REDUCE, tuple(start.args))
    _replaced(state, start, waits[0], call, "through memory that GPUs map from each other")
    return True


def _added(state: Rewriting, start: Node, wait: Node, nbytes: int, exchanges: dict[str, int]) -> bool:
    """A sum as the addition of what both processes have."""
    from polyfuse.torch_compat import symmetric

    name = str(start.args[2])
    group = group_of(name)
    if group is None or len(group.ranks) != symmetric.EXCHANGING or start.meta.get(CHUNK):
        return False
    if nbytes > symmetric.LARGEST_EXCHANGE or not state.spend():
        return False
    number = exchanges.get(name, 0)
    exchanges[name] = number + 1
    other = state.call_before(start, symmetric.EXCHANGE, (start.args[0], number % 2, not number, name))
    call = state.call_before(start, torch.ops.aten.add.Tensor, (start.args[0], other))
    _replaced(state, start, wait, call, "added up where it is read, in memory that GPUs map")
    return True


def _replaced(state: Rewriting, start: Node, wait: Node, call: Node, reason: str) -> None:
    state.notes.append(Note("symmetric", start.name, wait.name, reason))
    state.replace(wait, call)
    state.graph.erase_node(start)
