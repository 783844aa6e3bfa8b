"""Arithmetic on real and imaginary parts: calls on two real tensors instead of one on a complex tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch.fx import Node

from polyfuse.frontend.rewrites.tools import Rewriting, aten, same_sizes, tensor_value

Part: TypeAlias = Node | float
Pair: TypeAlias = tuple[Part, Part]

REAL: Final = {torch.complex64: torch.float32, torch.complex128: torch.float64}


class Unsupported(Exception):
    """Parts cannot be computed of this call."""


class Parts:
    """Calls on parts, each made before the one that it stands for."""

    def __init__(self, state: Rewriting) -> None:
        self.state = state
        self.pairs: dict[Node, Pair] = {}
        self.made: list[Node] = []
        self.node: Node
        self.like: torch.Tensor

    def begin(self, node: Node, like: Node) -> None:
        """Make calls before `node` from now on, in the size and type of `like`, which is complex."""
        value = tensor_value(like)
        assert value is not None
        self.node, self.like = node, value

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A call on parts at the current node."""
        last = self.node.prev
        try:
            new = self.state.call_before(self.node, target, args, kwargs)
        except RuntimeError:
            if self.node.prev is not last:  # torch refuses the values of a call that is in the graph already
                self.state.graph.erase_node(self.node.prev)
            raise
        self.made.append(new)
        return new

    def of(self, value: Any) -> Pair:
        """The parts of an operand; a real one has an imaginary part of zero.

        Raises:
            Unsupported: nothing is known of it.
        """
        if isinstance(value, complex):
            return value.real, value.imag
        if isinstance(value, int | float):
            return float(value), 0.0
        known = tensor_value(value)
        if known is None:
            raise Unsupported
        if not known.dtype.is_complex:
            return self.cast(value), 0.0
        if value not in self.pairs:
            if known.is_conj():  # its parts are no view
                raise Unsupported
            both = self.call(aten.view_as_real.default, value)
            self.pairs[value] = self.select(both, 0), self.select(both, 1)
        return self.pairs[value]

    def cast(self, value: Node) -> Node:
        """A real operand in the type of the current node's parts.

        Raises:
            Unsupported: the parts have no real type, as halves of complex numbers have not.
        """
        known, wanted = tensor_value(value), REAL.get(self.like.dtype)
        if wanted is None:  # halves of complex numbers
            raise Unsupported
        if known is None or known.dtype == wanted:
            return value
        return self.call(torch.ops.prims.convert_element_type.default, value, wanted)

    def select(self, both: Node, at: int) -> Node:
        """One of two parts that lie beside each other."""
        return self.call(aten.select.int, both, -1, at)

    def tensor(self, part: Part) -> Node:
        """A part as a tensor of the current size."""
        if not isinstance(part, Node):
            dtype = REAL[self.like.dtype]
            return self.call(aten.full.default, self._size(), part, dtype=dtype, device=self.like.device)
        known = tensor_value(part)
        if known is not None and same_sizes(known.shape, self.like.shape):
            return part
        return self.call(aten.expand.default, part, self._size())

    def _size(self) -> list[int]:
        if not all(type(n) is int for n in self.like.shape):
            raise Unsupported
        return list(self.like.shape)

    def joined(self, pair: Pair) -> Node:
        """Both parts beside each other, as memory has complex numbers, in the traced order of dimensions."""
        order = list(range(self.like.dim()))
        if all(type(step) is int for step in self.like.stride()):
            order.sort(key=self.like.stride, reverse=True)
        moved = order != list(range(self.like.dim()))
        parts = list(map(self.tensor, pair))
        if moved:
            parts = [self.call(aten.permute.default, part, order) for part in parts]
        parts = [self.call(aten.unsqueeze.default, part, -1) for part in parts]
        both = self.call(aten.cat.default, parts, -1)
        back = [*map(order.index, range(len(order))), len(order)]
        return self.call(aten.permute.default, both, back) if moved else both

    # Arithmetic, of which numbers that are known are computed at once.

    def add(self, a: Part, b: Part) -> Part:
        return self._folded(aten.add.Tensor, a, b, lambda x, y: x + y)

    def mul(self, a: Part, b: Part) -> Part:
        return self._folded(aten.mul.Tensor, a, b, lambda x, y: x * y)

    def neg(self, a: Part) -> Part:
        return self.call(aten.neg.default, a) if isinstance(a, Node) else -a

    def sub(self, a: Part, b: Part) -> Part:
        if isinstance(a, Node):
            return self.call(aten.sub.Tensor, a, b)
        return self.add(self.neg(b), a)

    def _folded(self, target: Any, a: Part, b: Part, known: Callable[[float, float], float]) -> Part:
        if isinstance(a, Node):
            return self.call(target, a, b)
        return self.call(target, b, a) if isinstance(b, Node) else known(a, b)


def _sum(parts: Parts, node: Node) -> Pair:
    a, b = map(parts.of, node.args[:2])
    if node.kwargs.get("alpha", 1) != 1:
        raise Unsupported
    step = parts.sub if node.target is aten.sub.Tensor else parts.add
    # eager mode multiplies the second operand by one, a complex number: of infinities that makes NaN
    real, imaginary = parts.sub(b[0], parts.mul(b[1], 0.0)), parts.add(parts.mul(b[0], 0.0), b[1])
    return step(a[0], real), step(a[1], imaginary)


def _product(parts: Parts, node: Node) -> Pair:
    (a, b), (c, d) = map(parts.of, node.args[:2])
    # an imaginary part of zero is multiplied, too, as in eager mode: of infinities it makes NaN
    real = parts.sub(parts.mul(a, c), parts.mul(b, d))
    return real, parts.add(parts.mul(a, d), parts.mul(b, c))


def _nodes(pair: Pair) -> tuple[Node, Node]:
    """Parts of which none is a number."""
    real, imaginary = pair
    if not isinstance(real, Node) or not isinstance(imaginary, Node):
        raise Unsupported
    return real, imaginary


def _quotient(parts: Parts, node: Node) -> Pair:
    divisor = node.args[1]
    if not isinstance(divisor, int | float) or not divisor or not math.isfinite(divisor):
        raise Unsupported  # eager mode scales what it divides by, so that nothing overflows
    a, b = _nodes(parts.of(node.args[0]))
    # as by a complex number, of which the imaginary part counts where something is not finite
    real, imaginary = parts.add(a, parts.mul(b, 0.0)), parts.sub(b, parts.mul(a, 0.0))
    return parts.call(aten.div.Tensor, real, divisor), parts.call(aten.div.Tensor, imaginary, divisor)


def _filled(parts: Parts, node: Node) -> Pair:
    (a, b), (c, d) = parts.of(node.args[0]), parts.of(node.args[2])
    if isinstance(c, Node) or isinstance(d, Node):
        raise Unsupported
    real, imaginary = (
        parts.call(aten.where.self, node.args[1], parts.tensor(new), parts.tensor(old))
        for old, new in ((a, c), (b, d))
    )
    return real, imaginary


def _conjugate(parts: Parts, node: Node) -> Pair:
    real, imaginary = parts.of(node.args[0])
    return real, parts.neg(imaginary)


def _sign(parts: Parts, node: Node) -> Pair:
    a, b = _nodes(parts.of(node.args[0]))
    length = parts.call(aten.hypot.default, a, b)
    zero = parts.call(aten.eq.Scalar, length, 0)
    nothing = parts.call(aten.full_like.default, length, 0)
    real, imaginary = (
        parts.call(aten.where.self, zero, nothing, parts.call(aten.div.Tensor, part, length))
        for part in (a, b)
    )
    return real, imaginary


def _polar(parts: Parts, node: Node) -> Pair:
    length, angle = node.args[:2]
    real, imaginary = (parts.call(target.default, angle) for target in (aten.cos, aten.sin))
    return parts.call(aten.mul.Tensor, length, real), parts.call(aten.mul.Tensor, length, imaginary)


def _together(parts: Parts, node: Node) -> Pair:
    real, imaginary = node.args[:2]
    assert isinstance(real, Node) and isinstance(imaginary, Node)
    return real, imaginary


def _read(parts: Parts, node: Node) -> Pair:
    both = node.args[0]
    assert isinstance(both, Node)
    return parts.select(both, 0), parts.select(both, 1)


def _converted(parts: Parts, node: Node) -> Pair:
    if any(value is not None for name, value in node.kwargs.items() if name != "dtype"):
        raise Unsupported
    source = node.args[0]
    known = tensor_value(source)
    if known is None or known.dtype not in (*REAL, *REAL.values()):
        raise Unsupported
    if not known.dtype.is_complex:
        return parts.of(source)
    real, imaginary = map(parts.cast, _nodes(parts.of(source)))
    return real, imaginary


def _chosen(parts: Parts, node: Node) -> Pair:
    (a, b), (c, d) = map(parts.of, node.args[1:3])
    real, imaginary = (
        parts.call(aten.where.self, node.args[0], *map(parts.tensor, both)) for both in ((a, c), (b, d))
    )
    return real, imaginary


def _listed(parts: Parts, node: Node) -> Pair:
    given: Any = node.args[0]
    pairs = [_nodes(parts.of(item)) for item in given]
    real, imaginary = (
        parts.call(node.target, list(both), *node.args[1:], **node.kwargs)
        for both in zip(*pairs, strict=True)
    )
    return real, imaginary


def _alike(parts: Parts, node: Node) -> Pair:
    """The operator itself, of each part."""
    if node.kwargs.get("dtype") is not None:
        raise Unsupported
    real, imaginary = (
        parts.call(node.target, part, *node.args[1:], **node.kwargs)
        for part in _nodes(parts.of(node.args[0]))
    )
    return real, imaginary


_VIEWS: Final = (
    *(aten.view.default, aten.permute.default, aten.transpose.int, aten.t.default, aten.expand.default),
    *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int),
    *(aten.alias.default,),
)
_COPIES: Final = (
    *(aten._unsafe_view.default, aten.clone.default, aten.neg.default, aten.sum.dim_IntList, aten.mean.dim),
    *(
        aten.index.Tensor,
        aten.index_select.default,
        aten.gather.default,
        aten.flip.default,
        aten.roll.default,
    ),
)

PAIRS: Final[Mapping[Any, Callable[[Parts, Node], Pair]]] = {
    aten.add.Tensor: _sum,
    aten.sub.Tensor: _sum,
    aten.mul.Tensor: _product,
    aten.mul.Scalar: _product,
    aten.div.Tensor: _quotient,
    aten._conj.default: _conjugate,
    aten.conj_physical.default: _conjugate,
    aten.sgn.default: _sign,
    aten.polar.default: _polar,
    aten.complex.default: _together,
    aten.view_as_complex.default: _read,
    aten._to_copy.default: _converted,
    torch.ops.prims.convert_element_type.default: _converted,
    aten.where.self: _chosen,
    aten.masked_fill.Scalar: _filled,
    aten.cat.default: _listed,
    **dict.fromkeys((*_VIEWS, *_COPIES), _alike),
}
"""From a call with a complex result to its parts."""


def _length(parts: Parts, node: Node) -> Node:
    return parts.call(aten.hypot.default, *_nodes(parts.of(node.args[0])))


def _angle(parts: Parts, node: Node) -> Node:
    real, imaginary = _nodes(parts.of(node.args[0]))
    return parts.call(aten.atan2.default, imaginary, real)


def _beside(parts: Parts, node: Node) -> Node:
    return parts.joined(parts.of(node.args[0]))


SINKS: Final[Mapping[Any, Callable[[Parts, Node], Node]]] = {
    aten.abs.default: _length,
    aten.angle.default: _angle,
    aten.view_as_real.default: _beside,
}
"""From a call with a real result, whose first argument is complex, to the same of its parts."""
