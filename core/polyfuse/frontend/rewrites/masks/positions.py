"""Values that follow from their position alone: numbers that go on evenly, and comparisons of such numbers.

Models count positions, compare neighbours and combine comparisons to find out which keys a query may see.
What comes of it is known when the graph is compiled, for any size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch.fx import Node

from polyfuse.frontend.rewrites.tools import aten, same_number, tensor_value, uniform_value
from polyfuse.torch_compat.tracing import fake, fx, shapes

_TYPES: Final = (torch.int64, torch.int32, torch.bool)

_SMALL: Final = 1 << 30
"""Numbers from which on those of 32 bits might not go on evenly."""


@dataclass(frozen=True)
class Even:
    """Integers: `start`, and for each dimension what is added from one index to the next.

    All of them are numbers or sympy expressions of sizes. Truth values are 0 and 1. Along a dimension of size
    one nothing is added.
    """

    start: Any
    steps: tuple[Any, ...]

    @property
    def uniform(self) -> bool:
        """Whether all elements are `start`."""
        return all(same_number(step, 0) for step in self.steps)

    @property
    def small(self) -> bool:
        """Whether it begins with a small number, and goes on in small steps."""
        numbers = (abs(n) if isinstance(n, int) else _SMALL for n in (self.start, *self.steps))
        return sum(numbers) < _SMALL

    def plus(self, other: Even, factor: int = 1) -> Even:
        """The sum with a multiple of another one of as many dimensions."""
        steps = (a + factor * b for a, b in zip(self.steps, other.steps, strict=True))
        return Even(self.start + factor * other.start, tuple(steps))


@dataclass(frozen=True)
class AtMost:
    """Truth values: where `numbers` are at most zero."""

    numbers: Even


Known: TypeAlias = Even | AtMost
_Rule: TypeAlias = "Callable[[Positions, Node], Known | None]"


class Positions:
    """What is known of the values of a graph; each is looked at once."""

    def __init__(self) -> None:
        self._found: dict[Node, Known | None] = {}

    def of(self, node: Any) -> Known | None:
        """What is known of an argument, which may be a number."""
        if isinstance(node, bool | int):
            return Even(int(node), ())
        if not isinstance(node, Node):
            return None
        pending = [node]
        while pending:  # arguments first, without recursion: graphs may be deep
            top = pending[-1]
            more = [] if top in self._found or not _may_be_known(top) else _unknown(top, self._found)
            if more:
                pending += more
                continue
            pending.pop()
            if top not in self._found:
                self._found[top] = self._look(top)
        return self._found[node]

    def numbers(self, node: Any, dims: int) -> Even | None:
        """Evenly spaced numbers of an argument, broadcast to so many dimensions."""
        found = self.of(node)
        if not isinstance(found, Even) or len(found.steps) > dims:
            return None
        return Even(found.start, (0,) * (dims - len(found.steps)) + found.steps)

    def _look(self, node: Node) -> Known | None:
        value = tensor_value(node)
        if value is None or not _may_be_known(node):
            return None
        found = _RULES[node.target](self, node)
        steps = found.steps if isinstance(found, Even) else found.numbers.steps if found is not None else ()
        if found is None or len(steps) != value.dim():
            return None
        if value.dtype is torch.int32 and isinstance(found, Even) and not found.small:
            return None
        return _without_single(found, value)


def _may_be_known(node: Node) -> bool:
    value = tensor_value(node)
    return value is not None and value.dtype in _TYPES and node.target in _RULES


def _unknown(node: Node, found: Mapping[Node, Known | None]) -> list[Node]:
    return [n for n in node.all_input_nodes if n not in found and tensor_value(n) is not None]


def _without_single(found: Known, value: torch.Tensor) -> Known:
    """The same, with nothing added along dimensions of size one."""
    if isinstance(found, AtMost):
        return AtMost(_single(found.numbers, value))
    return _single(found, value)


def _single(found: Even, value: torch.Tensor) -> Even:
    steps = (0 if same_number(n, 1) else step for n, step in zip(value.shape, found.steps, strict=True))
    return Even(found.start, tuple(steps))


def _env(value: torch.Tensor) -> Any:
    mode = fake.detect_fake_mode([value])
    return None if mode is None else mode.shape_env


def _certain(env: Any, number: Any) -> bool:
    """Whether a number is never negative."""
    low, _ = shapes.value_range(env, number)
    return low is not None and low >= 0


def _number(argument: Any, default: Any = None) -> Any:
    """A number of a call, as a number or a sympy expression; None for what is none."""
    value = shapes.expr_of(fx.value_of(argument))
    return default if value is None or isinstance(value, torch.Tensor) else value


def _argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


# Rules: what is known of a call's result.


def _counted(_: Positions, node: Node) -> Known | None:
    numbers = [_number(argument) for argument in node.args]
    first, step = (numbers[0], numbers[2] if len(numbers) > 2 else 1) if len(numbers) > 1 else (0, 1)
    plain = all(n is not None and not isinstance(n, float) for n in (first, step))
    return Even(first, (step,)) if plain else None


def _filled(_: Positions, node: Node) -> Known | None:
    number, value = uniform_value(node), node.meta["val"]
    return Even(int(number), (0,) * value.dim()) if isinstance(number, bool | int) else None


def _same(found: Positions, node: Node) -> Known | None:
    known, dtype = found.of(node.args[0]), node.meta["val"].dtype
    before = tensor_value(node.args[0])
    if before is None or (dtype is torch.bool) == (before.dtype is torch.bool):
        return known
    # as numbers, truth values are known where all are alike; the other way round they are not
    return known if dtype is not torch.bool and isinstance(known, Even) and known.uniform else None


def _sum(found: Positions, node: Node) -> Known | None:
    value, factor = node.meta["val"], node.kwargs.get("alpha", 1)
    left, right = (found.numbers(argument, value.dim()) for argument in node.args[:2])
    if left is None or right is None or not isinstance(factor, int) or value.dtype is torch.bool:
        return None
    return left.plus(right, -factor if node.target is aten.sub.Tensor else factor)


def _running_sum(found: Positions, node: Node) -> Known | None:
    known = found.of(node.args[0])
    zero = isinstance(known, Even) and known.uniform and same_number(known.start, 0)
    return Even(0, (0,) * node.meta["val"].dim()) if zero else None


def _laid_out(lay: Callable[[Even, Node], Even | None]) -> _Rule:
    """A rule for views."""

    def rule(found: Positions, node: Node) -> Known | None:
        known = found.of(node.args[0])
        if known is None:
            return None
        laid = lay(known.numbers if isinstance(known, AtMost) else known, node)
        return laid if laid is None or isinstance(known, Even) else AtMost(laid)

    return rule


def _with_axis(known: Even, node: Node) -> Even | None:
    dim = int(node.args[1]) % node.meta["val"].dim()
    return Even(known.start, (*known.steps[:dim], 0, *known.steps[dim:]))


def _expanded(known: Even, node: Node) -> Even | None:
    return Even(known.start, (0,) * (node.meta["val"].dim() - len(known.steps)) + known.steps)


def _viewed(known: Even, node: Node) -> Even | None:
    """Only dimensions of size one come or go."""
    before, after = node.args[0].meta["val"].shape, node.meta["val"].shape
    left = [(n, step) for n, step in zip(before, known.steps, strict=True) if not same_number(n, 1)]
    right = [n for n in after if not same_number(n, 1)]
    if known.uniform:
        return Even(known.start, (0,) * len(after))
    if len(left) != len(right) or not all(same_number(n, m) for (n, _), m in zip(left, right, strict=True)):
        return None
    steps = iter(left)
    return Even(known.start, tuple(0 if same_number(n, 1) else next(steps)[1] for n in after))


def _permuted(known: Even, node: Node) -> Even | None:
    order: Sequence[int] = node.args[1]
    return Even(known.start, tuple(known.steps[dim] for dim in order))


def _sliced(known: Even, node: Node) -> Even | None:
    dim = int(_argument(node, 1, "dim", 0)) % len(known.steps)
    start, step = _number(_argument(node, 2, "start", 0), 0), _number(_argument(node, 4, "step", 1), 1)
    if not (isinstance(start, int) and isinstance(step, int)) or start < 0:
        return None
    every = known.steps[dim]
    steps = (*known.steps[:dim], every * step, *known.steps[dim + 1 :])
    return Even(known.start + every * start, steps)


def _joined(found: Positions, node: Node) -> Known | None:
    """Tensors one after the other, each of which goes on where the one before it ended."""
    parts: Sequence[Any] = node.args[0]
    dims = node.meta["val"].dim()
    dim = int(_argument(node, 1, "dim", 0)) % max(1, dims)
    known = [found.of(part) for part in parts]
    evens = [even for even in known if isinstance(even, Even) and len(even.steps) == dims]
    if len(evens) != len(known) or not evens:
        return None
    lengths = [shapes.expr_of(part.meta["val"].shape[dim]) for part in parts]
    # one element alone has no step of its own
    step = next((e.steps[dim] for e, n in zip(evens, lengths, strict=True) if not same_number(n, 1)), None)
    if step is None:
        step = evens[1].start - evens[0].start if len(evens) > 1 else 0
    steps, start = (*evens[0].steps[:dim], step, *evens[0].steps[dim + 1 :]), evens[0].start
    for even, length in zip(evens, lengths, strict=True):
        others = (*even.steps[:dim], step, *even.steps[dim + 1 :])
        own = same_number(length, 1) or same_number(even.steps[dim], step)
        if not own or not same_number(even.start, start):
            return None
        if not all(same_number(a, b) for a, b in zip(others, steps, strict=True)):
            return None
        start = start + step * length
    return Even(evens[0].start, steps)


def _looked_up(found: Positions, node: Node) -> Known | None:
    """`x[i, j]` with an index for each dimension, none of them outside."""
    source: Any = node.args[0]
    indices: Sequence[Any] = node.args[1]
    known, value, table = found.of(source), node.meta["val"], tensor_value(source)
    if not isinstance(known, Even) or table is None or len(indices) != table.dim():
        return None
    result = Even(known.start, (0,) * value.dim())
    for index, step, size in zip(indices, known.steps, table.shape, strict=True):
        if index is None or index.meta["val"].dtype is torch.bool:
            return None
        at = found.numbers(index, value.dim())
        if at is None:
            return None
        low, high = _ends(at, value)
        env, end = _env(value), shapes.expr_of(size) - 1
        if not (_certain(env, low) and _certain(env, end - high)):
            return None
        result = Even(
            result.start + step * at.start,
            tuple(a + step * b for a, b in zip(result.steps, at.steps, strict=True)),
        )
    return result


def _ends(numbers: Even, value: torch.Tensor) -> tuple[Any, Any]:
    """The least and the greatest, as expressions; steps that are no plain numbers give bounds that nothing is
    certain about.
    """
    low = high = numbers.start
    for step, size in zip(numbers.steps, value.shape, strict=True):
        if not isinstance(step, int):
            return -1, shapes.expr_of(size)
        last = step * (shapes.expr_of(size) - 1)
        low, high = (low, high + last) if step > 0 else (low + last, high)
    return low, high


def _compared(found: Positions, node: Node) -> Known | None:
    value = node.meta["val"]
    left, right = (found.numbers(argument, value.dim()) for argument in node.args[:2])
    if left is None or right is None:
        return None
    name = node.target._schema.name.removeprefix("aten::")
    apart = left.plus(right, -1)
    if name in ("eq", "ne"):
        if not apart.uniform or not isinstance(apart.start, int):
            return None
        return Even(int((apart.start == 0) == (name == "eq")), (0,) * value.dim())
    if name in ("ge", "gt"):
        apart = Even(0, (0,) * value.dim()).plus(apart, -1)
    if name in ("lt", "gt"):
        apart = Even(apart.start + 1, apart.steps)
    return _decided(AtMost(apart), value)


def _decided(known: AtMost, value: torch.Tensor) -> Known:
    """The same, as one truth value where the sizes leave no other."""
    low, high = _ends(known.numbers, value)
    env, steps = _env(value), (0,) * value.dim()
    if _certain(env, -high):
        return Even(1, steps)
    return Even(0, steps) if _certain(env, low - 1) else known


def _both(found: Positions, node: Node) -> Known | None:
    value = node.meta["val"]
    if value.dtype is not torch.bool:
        return None
    sides = [found.of(argument) for argument in node.args[:2]]
    for one, other in (sides, sides[::-1]):
        if isinstance(one, Even) and one.uniform:
            if same_number(one.start, 0):
                return Even(0, (0,) * value.dim())
            if same_number(one.start, 1) and other is not None:
                return _broadcast(other, value.dim())
    return None


def _broadcast(known: Known, dims: int) -> Known:
    numbers = known.numbers if isinstance(known, AtMost) else known
    more = Even(numbers.start, (0,) * (dims - len(numbers.steps)) + numbers.steps)
    return AtMost(more) if isinstance(known, AtMost) else more


def _inverted(found: Positions, node: Node) -> Known | None:
    known, dims = found.of(node.args[0]), node.meta["val"].dim()
    if known is None or node.meta["val"].dtype is not torch.bool:
        return None
    if isinstance(known, AtMost):
        # not at most zero: one or more
        return AtMost(Even(1, (0,) * dims).plus(known.numbers, -1))
    return Even(1 - known.start, (0,) * dims) if known.uniform else None


_RULES: Final[Mapping[Any, _Rule]] = {
    aten.arange.default: _counted,
    aten.arange.start: _counted,
    aten.arange.start_step: _counted,
    aten.full.default: _filled,
    aten.clone.default: _same,
    aten.alias.default: _same,
    aten._to_copy.default: _same,
    aten.add.Tensor: _sum,
    aten.sub.Tensor: _sum,
    aten.cumsum.default: _running_sum,
    aten.unsqueeze.default: _laid_out(_with_axis),
    aten.expand.default: _laid_out(_expanded),
    aten.view.default: _laid_out(_viewed),
    aten._unsafe_view.default: _laid_out(_viewed),
    aten.squeeze.dim: _laid_out(_viewed),
    aten.squeeze.dims: _laid_out(_viewed),
    aten.permute.default: _laid_out(_permuted),
    aten.slice.Tensor: _laid_out(_sliced),
    aten.cat.default: _joined,
    aten.index.Tensor: _looked_up,
    **{getattr(aten, name).Tensor: _compared for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{getattr(aten, name).Scalar: _compared for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    aten.bitwise_and.Tensor: _both,
    aten.logical_and.default: _both,
    aten.bitwise_not.default: _inverted,
    aten.logical_not.default: _inverted,
}
