"""Remove calls that return what they were given: neutral arithmetic, copies nobody needs, views that change
nothing; and conversions that an earlier one makes pointless, where every value survives exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import torch
from torch.fx import Node

from polyfuse.frontend.rewrites.tools import (
    Rewriting,
    aten,
    same_kind,
    same_layout,
    same_number,
    same_sizes,
    tensor_value,
    uniform_value,
)
from polyfuse.torch_compat import ops

# Views only where possible, so their strides do not tell which element is where.
_MAYBE_COPY: Final = (
    aten.reshape.default,
    aten.contiguous.default,
    aten.resolve_conj.default,
    aten.resolve_neg.default,
)


def remove_identity_views(state: Rewriting) -> int:
    """A view equal to something further up its own chain of views: `permute` undone, `expand` to the same
    size.
    """

    def equal(node: Node) -> Node | None:
        value = tensor_value(node)
        if not is_pure_view(node) or value is None:
            return None
        target = _equal_ancestor(node, value)
        # The caller may rely on getting two tensor objects for two outputs.
        return None if target is None or (state.is_output(node) and not state.may_return(target)) else target

    return state.replace_each(equal)


def _equal_ancestor(node: Node, value: torch.Tensor) -> Node | None:
    ancestor: Any = node.args[0] if node.args else None
    found = None
    while isinstance(ancestor, Node):
        candidate = tensor_value(ancestor)
        if candidate is None:
            break
        if same_kind(candidate, value) and _same_window(candidate, value):
            found = ancestor
        ancestor = ancestor.args[0] if is_pure_view(ancestor) and ancestor.args else None
    return found


def is_pure_view(node: Node) -> bool:
    """Whether the result of a node always lies in the memory of its first argument."""
    if node.op != "call_function" or node.target in _MAYBE_COPY:
        return False
    facts = ops.facts(node.target)
    return facts.is_view and facts.is_operator


def _same_window(a: torch.Tensor, b: torch.Tensor) -> bool:
    return same_sizes(a.stride(), b.stride()) and same_number(a.storage_offset(), b.storage_offset())


def remove_copies(state: Rewriting) -> int:
    """Copies with the layout of their source, where nobody can distinguish the two."""
    return _replace_by_sources(state, _COPIES)


def undo_copies(state: Rewriting) -> int:
    """A copy that lays the elements of a copy as they lay before: a view of what was copied first.

    torch lays results of attention with a bias out anew, and models theirs back.
    """

    def undone(node: Node) -> Callable[[], Node] | None:
        reordered = node.args[0] if node.target is aten.clone.default else None
        if not isinstance(reordered, Node) or reordered.target is not aten.permute.default:
            return None
        copy, order = reordered.args[:2]
        source = copy.args[0] if isinstance(copy, Node) and copy.target is aten.clone.default else None
        value, original = tensor_value(node), tensor_value(source)
        if not isinstance(source, Node) or value is None or original is None:
            return None
        sizes, strides = (
            [of[d] for d in cast(list[int], order)] for of in (original.shape, original.stride())
        )
        if not (same_sizes(value.shape, sizes) and same_sizes(value.stride(), strides)):
            return None
        # the source is read later than it was, and in place of both copies: nobody may write to any of them
        if any(map(state.escapes, (source, copy, node))) or not state.may_share(node, source):
            return None
        return lambda: state.call_before(node, aten.permute.default, (source, order))

    return state.replace_each(undone)


def _replace_by_sources(state: Rewriting, finders: Mapping[Any, Callable[[Node], Node | None]]) -> int:
    """Replace calls by what `finders`, by operator, say that they give again, if it lies as they do."""

    def source_of(node: Node) -> Node | None:
        find = finders.get(node.target)
        source = find(node) if find is not None else None
        value, original = tensor_value(node), tensor_value(source)
        if source is None or value is None or original is None or not same_layout(value, original):
            return None
        return source if state.may_share(node, source) else None

    return state.replace_each(source_of)


def _first(node: Node) -> Node | None:
    source = node.args[0]
    return source if isinstance(source, Node) else None


def _rounded(node: Node) -> Node | None:
    return None if _is_floating(node) else _first(node)


def _converted(node: Node) -> Node | None:
    return None if node.kwargs.get("pin_memory") else _first(node)


def _where_all(neutral: int) -> Callable[[Node], Node | None]:
    """The first argument where all of a list of options are that number."""
    return lambda node: _first(node) if all(same_number(n, neutral) for n in node.args[1]) else None


def _single_cat(node: Node) -> Node | None:
    tensors = node.args[0]
    only = tensors[0] if isinstance(tensors, list | tuple) and len(tensors) == 1 else None
    return only if isinstance(only, Node) else None


def _overwritten(node: Node) -> Node | None:
    source = node.args[1] if len(node.args) > 1 else None
    return source if isinstance(source, Node) else None


_COPIES: Final[Mapping[Any, Callable[[Node], Node | None]]] = {
    aten.clone.default: _first,
    aten.alias_copy.default: _first,
    aten.lift_fresh_copy.default: _first,
    aten.ceil.default: _rounded,
    aten.floor.default: _rounded,
    aten.round.default: _rounded,
    aten.trunc.default: _rounded,
    aten._to_copy.default: _converted,
    torch.ops.prims.convert_element_type.default: _first,
    aten.repeat.default: _where_all(1),
    aten.constant_pad_nd.default: _where_all(0),
    aten.cat.default: _single_cat,
    aten.copy.default: _overwritten,
}


def remove_neutral_arithmetic(state: Rewriting) -> int:
    """Adding nothing, multiplying by one, choosing between equals. Exact for NaN and signed zero too."""
    return _replace_by_sources(state, _NEUTRAL)


def _is_positive_zero(number: Any) -> bool:
    return number is not None and number == 0 and math.copysign(1.0, number) > 0


def _is_floating(node: Node) -> bool:
    value = tensor_value(node)
    return value is not None and (value.is_floating_point() or value.is_complex())


def _is_complex(node: Node) -> bool:
    """A number beside a complex tensor has an imaginary part of zero: `infinity * (1 + 0j)` has a NaN, and
    `-0j + 0j` is `0j`."""
    value = tensor_value(node)
    return value is not None and value.is_complex()


def _neutral_sum(node: Node) -> Node | None:
    """`x + 0`: for floating point only -0.0 is neutral, since -0.0 + 0.0 is 0.0."""
    if _is_complex(node):
        return None
    left, right = node.args[:2]
    for other, added in ((left, right), (right, left)):
        number = uniform_value(added)
        if not isinstance(other, Node) or number is None or number != 0:
            continue
        if added is left and node.kwargs.get("alpha", 1) != 1:
            continue
        if not _is_floating(node) or (not _is_positive_zero(number) and node.kwargs.get("alpha", 1) == 1):
            return other
    return None


def _neutral_difference(node: Node) -> Node | None:
    """`x - 0`, exact with signs too."""
    alpha = node.kwargs.get("alpha", 1)
    if _is_positive_zero(uniform_value(node.args[1])) and isinstance(alpha, int | float) and alpha > 0:
        return _first(node)
    return None


def _neutral_product(node: Node) -> Node | None:
    if _is_complex(node):
        return None
    left, right = node.args[:2]
    if uniform_value(right) == 1 and isinstance(left, Node):
        return left
    return right if uniform_value(left) == 1 and isinstance(right, Node) else None


def _neutral_second(neutral: float) -> Callable[[Node], Node | None]:
    def find(node: Node) -> Node | None:
        rounding = node.kwargs.get("rounding_mode")
        return _first(node) if rounding is None and uniform_value(node.args[1]) == neutral else None

    return find


def _equal_choices(node: Node) -> Node | None:
    condition, chosen, other = node.args
    if chosen is other and isinstance(chosen, Node):
        return chosen
    decided = uniform_value(condition)
    pick = None if decided is None else (chosen if decided else other)
    return pick if isinstance(pick, Node) else None


def _double_negation(node: Node) -> Node | None:
    """Undone by itself; a result of another dtype, such as `logical_not` of a number, is refused by the
    caller.
    """
    inner = node.args[0]
    if isinstance(inner, Node) and inner.target is node.target and isinstance(inner.args[0], Node):
        return inner.args[0]
    return None


def _neutral_divisor(node: Node) -> Node | None:
    return None if _is_complex(node) else _neutral_second(1)(node)


_NEUTRAL: Final[Mapping[Any, Callable[[Node], Node | None]]] = {
    aten.add.Tensor: _neutral_sum,
    aten.add.Scalar: _neutral_sum,
    aten.sub.Tensor: _neutral_difference,
    aten.sub.Scalar: _neutral_difference,
    aten.mul.Tensor: _neutral_product,
    aten.mul.Scalar: _neutral_product,
    aten.div.Tensor: _neutral_divisor,
    aten.div.Scalar: _neutral_divisor,
    aten.pow.Tensor_Scalar: _neutral_second(1),
    aten.bitwise_or.Scalar: _neutral_second(0),
    aten.bitwise_xor.Scalar: _neutral_second(0),
    aten.where.self: _equal_choices,
    aten.neg.default: _double_negation,
    aten.logical_not.default: _double_negation,
    aten.bitwise_not.default: _double_negation,
}


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
