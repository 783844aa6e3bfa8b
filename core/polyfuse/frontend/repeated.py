"""Where a captured graph repeats itself, as a model with equal layers does, and the regions that this makes.

Nodes of Dynamo's graph are compared by operator, constants, and the type, sizes and strides of their results.
The longest run that repeats with some period is cut where the fewest bytes pass from one period to the next.
Each region then gets a key: regions of equal keys compute the same of their inputs, so that one of them is
compiled for all. No cut is made where gradients are switched off for a part, as by `no_grad` in a model.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node

from polyfuse.frontend.runs import longest_repetition
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fake, global_state

_LEAST_NODES = 8
"""Of a period: what is smaller costs less to compile than to call apart."""

_LEAST_REPEATS = 6
"""Below, what is saved is less than what fusing across the cuts may be worth."""

_NEVER = 1 << 50
"""Bytes that no cut is made for: AOTAutograd's results are tensors."""

_HOMES = ("torch", "math", "builtins")

_KEEP_STATE = frozenset({"batch_norm", "instance_norm", "fused_moving_avg_obs_fake_quant"})
"""Functions that write to statistics among their arguments."""

_PLAIN = (int, float, complex, bool, str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout)


@dataclass(frozen=True)
class GraphRegion:
    """Neighbouring nodes of a graph.

    Attributes:
        nodes: these, in order.
        inputs: what they read of others, in the order of their first use.
        outputs: those of them that others read.
        key: equal for regions that compute the same of inputs that look the same.
    """

    nodes: Sequence[Node]
    inputs: Sequence[Node]
    outputs: Sequence[Node]
    key: Hashable


class _NoRepeats(Exception):
    """Why a graph stays whole."""


def regions_of(gm: GraphModule, example_inputs: Sequence[Any]) -> Sequence[GraphRegion]:
    """The regions of a graph that repeats itself, in order, or nothing where it stays whole: it does not
    repeat itself often enough, has sizes that vary, writes to a tensor, or calls what cannot be compared.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    nodes = [node for node in gm.graph.nodes if node.op not in ("placeholder", "output")]
    if len(nodes) < _LEAST_NODES * _LEAST_REPEATS or len(placeholders) != len(example_inputs):
        return ()
    try:
        looks: dict[Node, Hashable] = {
            node: _tensor_look(example) for node, example in zip(placeholders, example_inputs, strict=True)
        }
        tokens = [_token(node) for node in nodes]
        looks.update((node, _look(_example(node))) for node in nodes)
        cuts = _cuts(nodes, tokens)
        return tuple(_regions(nodes, cuts, looks)) if cuts else ()
    except _NoRepeats:
        return ()


def _example(node: Node) -> Any:
    return node.meta.get("example_value")


def _token(node: Node) -> Hashable:
    """What a node is, whatever it reads."""
    target = node.target
    if node.op == "call_method":
        if not isinstance(target, str) or _writes(target):
            raise _NoRepeats
    elif node.op != "call_function" or not _is_pure(node):
        raise _NoRepeats
    if _example(node) is None and target not in global_state.SILENT_FUNCTIONS:
        raise _NoRepeats
    return node.op, target, _value(node.args, {}), _value(node.kwargs, {}), _look(_example(node))


def _writes(name: str) -> bool:
    """Whether a function or method is named as those are that write to an argument."""
    if name.startswith("__") and name.endswith("__"):
        return name in ("__setitem__", "__delitem__", "__set__") or (
            name.startswith("__i") and hasattr(operator, f"__{name[3:]}")
        )
    return name.endswith("_")


def _is_pure(node: Node) -> bool:
    """Whether a called function is known to write to none of its arguments, nor to torch's own state."""
    target: Any = node.target
    if isinstance(target, ops.HigherOrderOperator) or node.kwargs.get("out") is not None:
        return False
    if isinstance(target, ops.OpOverload):
        return not target._schema.is_mutable
    if isinstance(target, ops.OpOverloadPacket):
        return not any(getattr(target, name)._schema.is_mutable for name in target.overloads())
    owner = getattr(target, "__objclass__", target)
    module, name = str(getattr(owner, "__module__", "")), str(getattr(target, "__name__", ""))
    if module == "_operator":
        return name not in ("setitem", "delitem") and not (
            name.startswith("i") and hasattr(operator, f"__{name[1:]}__")
        )
    if module.partition(".")[0] not in _HOMES or name in _KEEP_STATE or _writes(name):
        return False
    return not _asked_to_write(target, node)


def _asked_to_write(target: Callable[..., Any], node: Node) -> bool:
    given: Mapping[str, Any] = node.kwargs
    with suppress(TypeError, ValueError):  # a built-in function has neither argument
        given = inspect.signature(target).bind(*node.args, **node.kwargs).arguments
    return bool(given.get("inplace")) or given.get("max_norm") is not None


def _look(value: Any) -> Hashable:
    """What is known of a node's result."""
    if isinstance(value, tuple | list):
        return type(value).__name__, *(_look(item) for item in value)
    if value is None:
        return None
    if not fake.is_fake(value):
        raise _NoRepeats  # a number, a switch of torch's, a subclass of tensors
    return _tensor_look(value)


def _tensor_look(value: Any) -> tuple[Hashable, ...]:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise _NoRepeats
    if type(value) not in (torch.Tensor, torch.nn.Parameter) and not fake.is_fake(value):
        raise _NoRepeats
    sizes = (*value.shape, *value.stride())
    if not all(type(size) is int for size in sizes) or value.is_conj() or value.is_neg():
        raise _NoRepeats
    return value.dtype, value.device, tuple(value.shape), tuple(value.stride()), value.requires_grad


def _value(value: Any, numbers: Mapping[Node, Hashable]) -> Hashable:
    """An argument, with nodes by what `numbers` calls them."""
    if isinstance(value, Node):
        return "node", numbers.get(value)
    if isinstance(value, tuple | list):
        return type(value).__name__, *(_value(item, numbers) for item in value)
    if isinstance(value, dict):
        return "dict", *((key, _value(item, numbers)) for key, item in value.items())
    if isinstance(value, slice):
        return "slice", *(_value(item, numbers) for item in (value.start, value.stop, value.step))
    if isinstance(value, _PLAIN):
        return type(value).__name__, repr(value)
    raise _NoRepeats


def _cuts(nodes: Sequence[Node], tokens: Sequence[Hashable]) -> Sequence[int]:
    """Where to cut a list of nodes: the borders of the periods of its longest run that repeats itself."""
    start, covered, period = longest_repetition(tokens, _LEAST_NODES, _LEAST_REPEATS)
    if not period:
        return ()
    cuts = _best_cuts(nodes, start, start + covered, period)
    off = _switched(nodes)
    return () if any(off[cut] for cut in cuts) else cuts


def _best_cuts(nodes: Sequence[Node], start: int, end: int, period: int) -> Sequence[int]:
    """The borders of the periods in `nodes[start:end]`: of all that are possible those over which the fewest
    bytes pass, and no tuple; of several such, the first.
    """
    positions = {node: position for position, node in enumerate(nodes)}
    change: Any = np.zeros(len(nodes) + 2, dtype=np.int64)
    for position in range(start, end):
        last = max((positions.get(user, len(nodes)) for user in nodes[position].users), default=position)
        passing = _bytes(_example(nodes[position]))
        change[position + 1] += passing
        change[last + 1] -= passing
    passes = np.cumsum(change)[: len(nodes) + 1] + _NEVER * _switched(nodes)
    middle = start + period * ((end - start) // period // 2)
    best = int(np.argmin(passes[middle : middle + period]))
    return tuple(range(start + best, end + 1, period))


def _bytes(value: Any) -> int:
    if value is None:
        return 0
    return _NEVER if isinstance(value, tuple | list) else int(value.numel() * value.element_size())


def _switched(nodes: Sequence[Node]) -> Any:
    """Of each border of nodes, whether gradients are there switched otherwise than where the graph begins."""
    begun = now = torch.is_grad_enabled()
    borders: Any = np.zeros(len(nodes) + 1, dtype=np.int64)
    for position, node in enumerate(nodes):
        if node.target is global_state.SWITCH_GRADIENTS:
            (now,) = node.args
        borders[position + 1] = now != begun
    return borders


def _regions(
    nodes: Sequence[Node], cuts: Sequence[int], looks: Mapping[Node, Hashable]
) -> Iterator[GraphRegion]:
    for first, behind in zip((0, *cuts), (*cuts, len(nodes)), strict=True):
        if first < behind:
            yield _region(nodes[first:behind], looks)


def _region(nodes: Sequence[Node], looks: Mapping[Node, Hashable]) -> GraphRegion:
    mine = set(nodes)
    inputs = tuple(dict.fromkeys(x for node in nodes for x in node.all_input_nodes if x not in mine))
    outputs = tuple(node for node in nodes if any(user not in mine for user in node.users))
    if any(isinstance(_example(node), tuple | list) for node in outputs):
        raise _NoRepeats
    numbers: dict[Node, Hashable] = {node: ("input", number) for number, node in enumerate(inputs)}
    numbers.update((node, number) for number, node in enumerate(nodes))
    body = tuple((n.op, n.target, _value(n.args, numbers), _value(n.kwargs, numbers)) for n in nodes)
    key = (body, tuple(looks[node] for node in inputs), tuple(numbers[node] for node in outputs))
    return GraphRegion(nodes, inputs, outputs, key)
