"""Where an operand of bytes is computed: what is known of one of a byte's numbers is not asked on the device,
and bytes become numbers by their bits: a conversion takes eight times as long as an addition.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from polyfuse.ir.statements import Compute, Load, Statement, with_index
from polyfuse.ir.types import DType
from polyfuse.kit.spans import Span, type_span
from polyfuse.symbolic import IndexLike, coefficient, substitute
from polyfuse_triton.loops.memory import MemoryScope
from polyfuse_triton.loops.scope import Value
from polyfuse_triton.matmul.narrow import GROUP

_FEW_VALUES = 128
"""Integers behind a power of two that are numbers of bf16, too."""
_HALF_BITS = 4
_ABOVE = 128.0
"""What halves of bytes are made above."""
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    op: getattr(operator, op) for op in ("eq", "ne", "lt", "le", "gt", "ge")
}


class NarrowScope(MemoryScope):
    """Where the operand is computed.

    Attributes:
        wanted: the type of what is multiplied.
    """

    wanted: DType = DType.bf16

    def at(
        self, body: Sequence[Statement], position: Mapping[str, IndexLike], before: Mapping[str, Value]
    ) -> None:
        """Begin with one of the numbers in each byte (`HALF`) of a step (`TURN`). `before`: values that are
        known already.
        """
        self.values = dict(before)
        self._halves: dict[str, tuple[str, str]] = {}
        self._above: dict[str, str] = {}
        self._known = {
            stmt.targets[0]: with_index(stmt, lambda index: substitute(index, position)) for stmt in body
        }

    def value(self, name: str) -> Value:
        found = self.values.get(name)
        if found is None:
            found = self.values[name] = self.evaluate(self._known[name])
        return found

    def evaluate(self, stmt: Statement) -> Value:
        if isinstance(stmt, Compute) and stmt.op == "where":
            chosen = self.value(stmt.args[0]).constant
            if chosen is not None:
                return self.value(stmt.args[1 if chosen else 2])
        elif isinstance(stmt, Compute) and stmt.op in _COMPARISONS:
            left, right = (self.value(name).constant for name in stmt.args)
            if left is not None and right is not None:
                return Value("", DType.bool, constant=_COMPARISONS[stmt.op](left, right))
        elif isinstance(stmt, Load) and stmt.mask is not None and stmt.other is not None:
            reads = self.value(stmt.mask).constant
            if reads is not None:
                return (
                    self.evaluate(replace(stmt, mask=None, other=None)) if reads else self.value(stmt.other)
                )
        shorter = self._difference(stmt)
        if shorter is not None:
            return shorter
        found = super().evaluate(stmt)
        if isinstance(stmt, Compute) and found.dtype is DType.u8 and found.dims:
            self._note_half(stmt, found)
        if found.dims and found.span is None and found.dtype in (DType.u8, DType.i8):
            return replace(found, span=self._span(stmt, found.dtype))
        return found

    def _difference(self, stmt: Statement) -> Value | None:
        """A number less than half a byte, in one subtraction with what the half is made above: to 2**-17 of
        the step between two halves, if not exact. None where it is something else.
        """
        if not isinstance(stmt, Compute) or stmt.op != "sub" or stmt.dtype is not DType.f32:
            return None
        left, right = (self.value(name) for name in stmt.args)
        above = self._above.get(left.text)
        if above is None:
            return None
        other = f"({right.text} + {_ABOVE})" if right.constant is None else repr(right.constant + _ABOVE)
        return self.define(f"{above} - {other}", Value("", DType.f32, left.dims | right.dims))

    def _note_half(self, stmt: Compute, found: Value) -> None:
        """Note of which byte a value is the lower or the upper half."""
        if stmt.op not in ("shift_right", "bitwise_and"):
            return
        byte, by = (self.value(name) for name in stmt.args)
        if byte.constant is not None:
            byte, by = by, byte
        if stmt.op == "shift_right" and by.constant == _HALF_BITS:
            self._halves[found.text] = (byte.text, "high_half")
        elif stmt.op == "bitwise_and" and by.constant == (1 << _HALF_BITS) - 1:
            self._halves[found.text] = self._halves.get(byte.text, (byte.text, "low_half"))

    def _span(self, stmt: Statement, dtype: DType) -> Span | None:
        """Bounds of a byte, or of a part of one."""
        whole = type_span(dtype)
        if isinstance(stmt, Compute) and stmt.op in ("bitwise_and", "shift_right"):
            left, right = (self.value(name) for name in stmt.args)
            if stmt.op == "bitwise_and":
                limits = [
                    v.constant for v in (left, right) if isinstance(v.constant, int) and v.constant >= 0
                ]
                return (0, min(limits)) if limits else whole
            span = left.span or whole
            if isinstance(right.constant, int) and 0 <= right.constant < 8 and span is not None:
                return int(span[0]) >> right.constant, int(span[1]) >> right.constant
        return whole

    def _cast(self, stmt: Statement, operand: Value, plain: Value) -> Value:
        if stmt.dtype is DType.f32 and operand.dims and operand.dtype in (DType.u8, DType.i8):
            low, high = map(int, operand.span or (-128, 255))
            text = self.typed(operand)
            if text in self._halves:
                byte, half = self._halves[text]
                above = self.define(f"{half}({byte})", plain).text
                found = self.define(f"{above} - {_ABOVE}", plain)
                self._above[found.text] = above
                return found
            if self.wanted is DType.f16:
                return self.define(f"integer_f16({text}, {low})", plain)
            if high - low < _FEW_VALUES:
                return self.define(f"integer_bf16({text}, {low})", plain)
            if operand.dtype is DType.i8:
                return self.define(f"signed_byte_bf16({text})", plain)
        return super()._cast(stmt, operand, plain)

    def elsewhere(self, dims: frozenset[str], dtype: DType) -> str:
        """Zero where a mask is false: rows beyond the end."""
        return ", other=0.0" if dtype.is_float else ", other=0"


class GroupScope(NarrowScope):
    """Where what each group has for itself is read: a column for each of a step's groups."""

    def evaluate(self, stmt: Statement) -> Value:
        if not isinstance(stmt, Load) or stmt.indirect or stmt.mask is not None:
            return super().evaluate(stmt)
        if not self._has_words(stmt):
            return super().evaluate(stmt)
        address = self.indexer().address(substitute(stmt.index, {GROUP: 0}))
        pointer = self.spread(address.of(self.arguments[stmt.buffer]), address.dims, frozenset("m"))
        inside = "".join(f", {mask}" for mask in self.coordinates.mask(frozenset("m")))
        text = f"by_words({pointer}, {GROUP.upper()}BLOCK{inside})"
        return self.define(text, Value("", stmt.dtype, frozenset(f"m{GROUP}")))

    def _has_words(self, stmt: Load) -> bool:
        """Whether what is read are whole words of numbers that follow each other."""
        groups = next((dim.block for dim in self.plan.dims if dim.name == GROUP), 1)
        arg = next(a for a in self.kernel.args if a.name == stmt.buffer)
        return (
            stmt.dtype.itemsize == 2
            and groups % 2 == 0
            and arg.aligned
            and coefficient(stmt.index, GROUP) == 1
            and substitute(stmt.index, {GROUP: 0}) % 2 == 0
        )
