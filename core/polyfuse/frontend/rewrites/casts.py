"""Conversions that an earlier conversion makes pointless. Only where every value survives exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch.fx import Node

from polyfuse.frontend.rewrites.tools import Rewriting, aten, same_layout, tensor_value

_INTEGER_BITS: Final = {
    torch.bool: (0, 1),
    torch.uint8: (0, 8),
    torch.uint16: (0, 16),
    torch.uint32: (0, 32),
    torch.uint64: (0, 64),
    torch.int8: (1, 7),
    torch.int16: (1, 15),
    torch.int32: (1, 31),
    torch.int64: (1, 63),
}
# Bits of significand, and the exponent range of finite values.
_FLOAT_RANGE: Final = {
    torch.bfloat16: (8, 127),
    torch.float16: (11, 15),
    torch.float32: (24, 127),
    torch.float64: (53, 1023),
}


def holds_exactly(narrow: torch.dtype, wide: torch.dtype) -> bool:
    """True if every value of `narrow` is a value of `wide`."""
    if narrow == wide:
        return True
    if narrow in _INTEGER_BITS and wide in _INTEGER_BITS:
        (signed, bits), (wide_signed, wide_bits) = _INTEGER_BITS[narrow], _INTEGER_BITS[wide]
        # Nothing but bool fits into bool, which keeps only "not zero".
        return wide != torch.bool and bits <= wide_bits and signed <= wide_signed
    if narrow in _INTEGER_BITS and wide in _FLOAT_RANGE:
        return _INTEGER_BITS[narrow][1] <= _FLOAT_RANGE[wide][0]
    if narrow in _FLOAT_RANGE and wide in _FLOAT_RANGE:
        return all(n <= w for n, w in zip(_FLOAT_RANGE[narrow], _FLOAT_RANGE[wide], strict=True))
    return False


def merge_casts(state: Rewriting) -> int:
    """A cast to something wider and on to a third dtype is one cast, or none at all."""

    def merged(node: Node) -> Node | Callable[[], Node] | None:
        inner = node.args[0] if node.args else None
        if not (_is_plain_cast(node) and isinstance(inner, Node) and _is_plain_cast(inner)):
            return None
        source = inner.args[0]
        first, middle, last = tensor_value(source), tensor_value(inner), tensor_value(node)
        if first is None or middle is None or last is None or not isinstance(source, Node):
            return None
        if not holds_exactly(first.dtype, middle.dtype) or not _converts_directly(first, middle, last):
            return None
        if same_layout(first, last) and state.may_share(node, source):
            return source
        if first.dtype == last.dtype:
            return None
        return lambda: state.call_before(node, aten._to_copy.default, (source,), {"dtype": last.dtype})

    return state.replace_each(merged)


def _converts_directly(first: torch.Tensor, middle: torch.Tensor, last: torch.Tensor) -> bool:
    """Whether the last conversion reads a value the same way from `first` as from `middle`.

    What does not fit into an integer is undefined from floating point but wraps from an integer.
    """
    return first.is_floating_point() == middle.is_floating_point() or last.is_floating_point()


def _is_plain_cast(node: Node) -> bool:
    return (
        node.op == "call_function" and node.target is aten._to_copy.default and set(node.kwargs) <= {"dtype"}
    )
