"""Operators left to eager mode's kernels where these are faster than what is generated: one table of rules.

A rule looks at one traced call and says why it is better called, or nothing. It knows sizes from the example
inputs, so nothing is guarded: a program that was made for other sizes is right as well. What a call costs
besides is weighed here, alike for all rules. Its result is stored and read again by those who would have been
fused with it, and so is what it reads.

A rule is added for what was measured (`force_fallback` names the operator: both forms then have the same
costs around them), with the figures in ``docs/decisions/eager-kernels.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch

from polyfuse.base.settings import Settings
from polyfuse.lowering.calls.extern import call
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.shapes.pooling_rows import by_rows
from polyfuse.plugin.lowering import Lowering
from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import shapes


@dataclass(frozen=True)
class TracedCall:
    """One call of a traced graph.

    Attributes:
        node: the traced node.
        shape_env: knows the sizes of the example inputs.
    """

    node: Any
    shape_env: Any

    def argument(self, position: int, default: Any = None) -> Any:
        """A positional argument as traced, a node for a tensor."""
        return self.node.args[position] if position < len(self.node.args) else default

    @property
    def result(self) -> torch.Tensor:
        """The result, or the first of several, as a fake tensor."""
        value = self.node.meta["val"]
        first = value[0] if isinstance(value, (tuple, list)) else value
        assert isinstance(first, torch.Tensor)
        return first

    def sizes(self, value: torch.Tensor) -> tuple[int, ...]:
        """The sizes of the example."""
        return self._hints(value.shape)

    def has_channels_last(self, value: torch.Tensor) -> bool:
        """Whether channels of an image lie side by side, more than one of them."""
        return value.dim() == 4 and self.sizes(value)[1] > 1 and self._hints(value.stride())[1] == 1

    def _hints(self, numbers: Any) -> tuple[int, ...]:
        return tuple(n if type(n) is int else int(shapes.hint(self.shape_env, n)) for n in numbers)


@dataclass(frozen=True)
class Preferred:
    """An operator that is called because eager mode's kernel is faster, and the reason.

    Attributes:
        reason: for people; empty where it is not.
        saved: how much time that saves, in reads or writes of the result from memory.
    """

    reason: str = ""
    saved: float = 0.0


Rule = Callable[[TracedCall], Preferred]


def preferred(
    node: Any, own: Lowering, rows: Mapping[Any, Lowering | None], shape_env: Any, settings: Settings
) -> tuple[Lowering, str] | None:
    """The row that calls a node's operator, and why, if that is better than its own lowering.

    Args:
        node: the traced call.
        own: its lowering.
        rows: those of the nodes behind it.
        shape_env: that of the graph.
        settings: where kernels alone are asked for (`gemm="generated"`, as programs without torch need it),
            nothing is called.
    """
    name = ops.op_name(node.target)
    rule = RULES.get(name)
    if rule is None or settings.gemm == "generated":
        return None
    traced = TracedCall(node, shape_env)
    if not device_of(str(traced.result.device)).is_host:
        return None
    found = rule(traced)
    if not found.reason or found.saved <= _lost(traced, own, rows):
        return None
    return Lowering(partial(_called, name), library=True), found.reason


def _called(name: str, ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> Any:
    return call(ctx, node.meta["val"], name, args, named)


def _lost(traced: TracedCall, own: Lowering, rows: Mapping[Any, Lowering | None]) -> float:
    """What fusing would have saved, in reads or writes of the result: a value between two operators that
    share a kernel is neither written nor read.
    """
    node = traced.node
    whole = max(1, math.prod(traced.sizes(traced.result)))
    lost = 0.0
    users = [rows.get(user) for user in node.users]
    if users and all(row is not None and not row.library and not row.view for row in users):
        lost += 2.0
    for position, argument in enumerate(node.args):
        if position in own.stores or not isinstance(getattr(argument, "meta", {}).get("val"), torch.Tensor):
            continue
        if (
            argument.op == "call_function"
            and len(argument.users) == 1
            and ops.facts(argument.target).pointwise
        ):
            lost += 2.0 * math.prod(traced.sizes(argument.meta["val"])) / whole
    return lost


# The rules.


def _max_pool(traced: TracedCall) -> Preferred:
    """Up to some size of the windows they are one expression, and where they overlap much they are pooled
    by rows; others are a loop that tests at each position whether it is inside the image.
    """
    kernel = _pair(traced.argument(1))
    stride, windows = _pair(traced.argument(2, ()) or kernel), math.prod(kernel)
    if not traced.has_channels_last(traced.result) or windows <= _ONE_EXPRESSION:
        return Preferred()
    if by_rows(kernel, stride, str(traced.result.device)):
        return Preferred()
    return Preferred(f"with the channels last, it reads windows of {windows} faster than a loop", windows / 2)


_ONE_EXPRESSION = 25
"""Positions of a window that are one expression."""


def _max_pool_backward(traced: TracedCall) -> Preferred:
    """The operator adds vectors of channels where they belong, one image on each thread; a kernel reads all
    windows over an element, on all threads.
    """
    kernel, stride = (_pair(traced.argument(p)) for p in (2, 3))
    over = math.prod(-(-k // s) for k, s in zip(kernel, stride or kernel, strict=True))
    if not traced.has_channels_last(traced.result) or over == 1:
        return Preferred()
    if over <= _MANY_WINDOWS and traced.sizes(traced.result)[0] == 1:
        return Preferred()
    return Preferred(f"with the channels last, it adds faster than {over} windows are read", over)


_MANY_WINDOWS = 9
"""Windows over an element that take longer to read on several threads than to add to on one."""


def _pair(value: Any) -> tuple[int, ...]:
    listed = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return listed * 2 if len(listed) == 1 else listed


RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "aten.max_pool2d_with_indices.default": _max_pool,
        "aten.max_pool2d_with_indices_backward.default": _max_pool_backward,
    }
)
"""By the names of operators."""
