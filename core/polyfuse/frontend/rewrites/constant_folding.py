"""Compute at compile time what depends on constants alone.

Two kinds of constant are folded. Tensors filled with one value stay symbolic, as `aten.full`, so that
lowering sees a number instead of memory. Tensors lifted from the model's code (`torch.tensor([...])`) are
evaluated while small. Parameters and buffers are inputs of the graph, not constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.frontend.rewrites.tools import (
    UNIFORM_VIEWS,
    Rewriting,
    aten,
    is_contiguous,
    is_viewed,
    keeps_offset,
    same_sizes,
    tensor_value,
    uniform_value,
)
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fake, fx

LARGEST_FOLDED: Final = 1 << 16
"""Bytes: a larger result is computed when the program runs."""

_UNIFORM_COPIES: Final = (
    aten.clone.default,
    aten._to_copy.default,
    aten.repeat.default,
    aten.lift_fresh_copy.default,
)


def spell_as_full(state: Rewriting) -> int:
    """`scalar_tensor` and `full_like` become `full`, the one name for "the same value everywhere"."""

    def spelled(node: Node) -> Callable[[], Node] | None:
        value = tensor_value(node)
        if value is None or node.target not in (aten.scalar_tensor.default, aten.full_like.default):
            return None
        number: Any = node.args[-1 if node.target is aten.scalar_tensor.default else 1]
        static = all(isinstance(n, int) for n in value.shape)
        if not static or not is_contiguous(value) or not isinstance(number, bool | int | float):
            return None
        return lambda: _full_before(state, node, value, number)

    return state.replace_each(spelled)


def _full_before(state: Rewriting, node: Node, value: torch.Tensor, number: bool | int | float) -> Node:
    options = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
    return state.call_before(node, aten.full.default, (list(value.shape), number), options)


def lifted_scalars(state: Rewriting) -> int:
    """A lifted constant of one element becomes `full`: a number in the code instead of a buffer."""
    count = 0
    for node in list(state.graph.nodes):
        if node.op != "get_attr" or not node.users:
            continue
        constant = fx.get_constant(state.module, str(node.target))
        # what is returned or written as an object counts as one
        if not _is_plain(constant) or constant.dim() > 0 or state.escapes(node):
            continue
        with fake.real_tensors():
            value = constant.item()
        if state.spend():
            state.replace(node, _full_before(state, node, constant, value))
            count += 1
    return count


def _is_plain(constant: Any) -> bool:
    return (
        type(constant) is torch.Tensor
        and not fake.is_fake(constant)
        and constant.layout == torch.strided
        and not constant.is_complex()
        and not constant.is_quantized
        and not constant.requires_grad
    )


def fold_uniform(state: Rewriting) -> int:
    """Views, casts and arithmetic of tensors that hold one value everywhere, as a new `full`."""

    def folded(node: Node) -> Callable[[], Node] | None:
        value = tensor_value(node)
        if value is None or not _is_foldable(state, node, value):
            return None
        number = _uniform_result(node, value)
        return None if number is None else lambda: _full_before(state, node, value, number)

    return state.replace_each(folded)


def _is_foldable(state: Rewriting, node: Node, value: torch.Tensor) -> bool:
    """Static shape (a symbolic one would need nodes for its sizes), strides like those of `full`, not
    returned.
    """
    static = all(isinstance(n, int) for n in value.shape)
    if not static or value.dtype.is_complex or value.layout != torch.strided:
        return False
    return is_contiguous(value) and keeps_offset(node, value, 0) and not state.escapes(node)


def _uniform_result(node: Node, value: torch.Tensor) -> bool | int | float | None:
    facts = ops.facts(node.target)
    if node.target is aten.full.default:
        return None
    if node.target in UNIFORM_VIEWS or node.target in _UNIFORM_COPIES:
        if uniform_value(node.args[0]) is None:
            return None
        return _evaluate(torch.Tensor.to, (_scalar(node.args[0]), value.dtype), value)
    inputs = node.all_input_nodes
    if not (facts.pointwise and facts.mergeable and inputs):
        return None
    if any(uniform_value(n) is None for n in inputs):
        return None
    arguments = torch.fx.node.map_arg(node.args, _scalar)
    keywords = torch.fx.node.map_arg(node.kwargs, _scalar)
    return _evaluate(node.target, arguments, value, **keywords)


def _scalar(arg: Any) -> torch.Tensor:
    """A real tensor of one element that promotes like a node, or like the plain number that `vmap` leaves."""
    number = uniform_value(arg)
    with fake.real_tensors():
        if not isinstance(arg, torch.fx.Node):
            return torch.tensor(number, device="cpu")
        traced = arg.meta["val"]
        return torch.full([1] * traced.dim(), number, dtype=traced.dtype, device="cpu")


def _evaluate(target: Any, args: Any, value: torch.Tensor, **kwargs: Any) -> bool | int | float | None:
    with fake.real_tensors(), torch.no_grad():
        try:
            result = target(*args, **kwargs)
        except (RuntimeError, TypeError, NotImplementedError):
            return None
        if not isinstance(result, torch.Tensor) or result.numel() != 1 or result.dtype != value.dtype:
            return None
        number: bool | int | float = result.item()
    finite = not isinstance(number, float) or math.isfinite(number) or value.is_floating_point()
    return number if finite else None


def fold_constants(state: Rewriting) -> int:
    """Evaluate small calls all of whose tensors are lifted constants."""

    def evaluated(node: Node) -> Callable[[], Node] | None:
        value = tensor_value(node)
        if value is None or not _is_small(value) or state.escapes(node) or not _is_evaluable(state, node):
            return None
        if not keeps_offset(node, value, 0):
            return None
        viewed = is_viewed(node)
        with fake.real_tensors(), torch.no_grad():
            real = node.target(*_real(state, node.args), **_real(state, node.kwargs))
            # views were traced with the strides too, which a copy has where they leave no gaps
            real = real.clone(memory_format=torch.preserve_format if viewed else torch.contiguous_format)
        if viewed and not same_sizes(real.stride(), value.stride()):
            return None
        return lambda: state.constant_before(node, real, _fake_like(real, value))

    return state.replace_each(evaluated)


def _is_small(value: torch.Tensor) -> bool:
    if not all(isinstance(n, int) for n in value.shape):
        return False
    return value.numel() * value.element_size() <= LARGEST_FOLDED


def _is_evaluable(state: Rewriting, node: Node) -> bool:
    facts = ops.facts(node.target)
    inputs = node.all_input_nodes
    if not (facts.is_operator and facts.mergeable and inputs):
        return False
    return all(
        n.op == "get_attr" and _is_plain(c := fx.get_constant(state.module, str(n.target))) and _is_small(c)
        for n in inputs
    )


def _real(state: Rewriting, argument: Any) -> Any:
    return torch.fx.node.map_arg(argument, lambda n: fx.get_constant(state.module, str(n.target)))


def _fake_like(real: torch.Tensor, value: torch.Tensor) -> Any:
    mode = fake.detect_fake_mode([value])
    return fake.fakify(mode, real) if mode is not None else real
