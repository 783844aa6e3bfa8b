"""Activations that cuBLASLt computes in the epilogue of a matmul with a bias.

A model spells tanh's approximation of GELU in several ways, and torch's own becomes arithmetic before it gets
here, in f32 or in 16 bits. So what is recognised is a function of numbers, not a pattern: the arithmetic
between a matmul and its only reader is evaluated in f64 at points that tell such functions apart.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.plugin import Rewrite, RewriteContext

_RELU: Final = "aten.relu.default"
_ADDMM: Final = "aten.addmm.default"
_VIEWS: Final = ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
_MOST_STEPS: Final = 24
"""Operations of the longest spelling that is looked at."""
_FEW_ROWS: Final = 64
"""Up to these, kernels of our own read the weight faster than the library, and have epilogues."""
_POINTS: Final = tuple(n / 16 for n in range(-144, 145))
_CLOSE: Final = 1e-6

_STEPS: Final[Mapping[str, Callable[..., float]]] = MappingProxyType(
    {
        "aten.mul.Tensor": operator.mul,
        "aten.add.Tensor": lambda x, y, alpha=1: x + alpha * y,
        "aten.sub.Tensor": lambda x, y, alpha=1: x - alpha * y,
        "aten.div.Tensor": operator.truediv,
        "aten.neg.default": operator.neg,
        "aten.tanh.default": math.tanh,
        "aten.sigmoid.default": lambda x: 0.5 + 0.5 * math.tanh(0.5 * x),
        "aten.pow.Tensor_Scalar": operator.pow,
        "aten._to_copy.default": lambda x: x,
    }
)
"""What such spellings are made of, for one number in f64."""


def in_epilogue(ctx: RewriteContext, node: Node) -> Node | None:
    """The matmul with a bias and the activation as one call, if `node` is ReLU or tanh's GELU of such a
    matmul, which nothing else reads.
    """
    result = ctx.tensor(node)
    plain = ctx.settings.gemm in ("library", "known") and ctx.settings.numerics != "eager"
    if not plain or result is None or result.dtype not in (torch.bfloat16, torch.float16):
        return None
    relu = ctx.is_called(node, _RELU)
    steps = _operand(node) if relu else _steps_to_matmul(ctx, node)
    if steps is None:
        return None
    source, order = steps
    matmul = _matmul_of(ctx, source)
    if matmul is None or not (relu or _is_gelu(order, source)):
        return None
    call = ctx.call("aten._addmm_activation.default", matmul.args, {"use_gelu": not relu})
    if source is matmul:
        return call
    return ctx.call("aten.view.default", (call, list(source.meta["val"].shape)))


def _operand(node: Node) -> tuple[Node, list[Node]] | None:
    """What one call alone reads."""
    source = node.all_input_nodes[0]
    return (source, [node]) if len(source.users) == 1 else None


def _steps_to_matmul(ctx: RewriteContext, node: Node) -> tuple[Node, list[Node]] | None:
    """The node that all arithmetic of one number between here and there begins with, and that arithmetic in
    order. None where it begins with several, or something else reads a part of it.
    """
    inside: list[Node] = []
    source: Node | None = None
    pending = [node]
    while pending:
        current = pending.pop()
        if current in inside:
            continue
        if not ctx.is_called(current, *_STEPS):
            if source not in (None, current):
                return None
            source = current
            continue
        value = ctx.tensor(current)
        inside.append(current)
        if len(inside) > _MOST_STEPS or value is None or not value.is_floating_point():
            return None
        pending += current.all_input_nodes
    if source is None or not inside:
        return None
    known = set(inside)
    if any(user not in known for part in (*inside, source) if part is not node for user in part.users):
        return None
    return source, sorted(inside)


def _matmul_of(ctx: RewriteContext, source: Node) -> Node | None:
    """The matmul with a bias of many rows whose result, or a view of it, the arithmetic begins with."""
    matmul: Any = source
    if ctx.is_called(source, *_VIEWS):
        matmul = source.args[0]
    if not ctx.is_called(matmul, _ADDMM) or len(matmul.args) != 3 or matmul.kwargs:
        return None
    if matmul is not source and len(matmul.users) != 1:
        return None
    value, bias = ctx.tensor(matmul), ctx.tensor(matmul.args[0])
    if value is None or bias is None or bias.dim() != 1 or bias.dtype != value.dtype:
        return None
    rows = value.shape[0]
    found: Node = matmul
    return None if isinstance(rows, int) and rows <= _FEW_ROWS else found


def _is_gelu(order: list[Node], source: Node) -> bool:
    """Whether the arithmetic computes tanh's GELU of the source."""
    try:
        return all(abs(_value(order, source, x) - _gelu(x)) <= _CLOSE * max(1.0, abs(x)) for x in _POINTS)
    except (ArithmeticError, TypeError, ValueError):
        return False  # it has no value there, or an argument is no number


def _value(order: list[Node], source: Node, x: float) -> float:
    """What the arithmetic gives for one number."""
    known: dict[Node, float] = {source: x}
    for node in order:
        arguments = [known[a] if isinstance(a, Node) else a for a in node.args]
        factor = {"alpha": node.kwargs["alpha"]} if "alpha" in node.kwargs else {}
        known[node] = _STEPS[str(node.target)](*arguments, **factor)
    return known[order[-1]]


def _gelu(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_ENDS: Final = (_RELU, "aten.mul.Tensor", "aten._to_copy.default")
"""What the spellings end with."""

REWRITES: Final = (Rewrite("activation-in-epilogue", _ENDS, in_epilogue),)
"""The rewrites of this plugin."""
