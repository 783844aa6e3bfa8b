"""Reductions and scans as states: how one starts, takes a value, and is merged with another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import halide as hl

from polyfuse_halide.library.math.arithmetic import (
    Value,
    add,
    bit_xor,
    equal,
    is_inf,
    is_nan,
    maximum,
    minimum,
    mul,
    number,
)
from polyfuse_halide.library.math.convert import constant
from polyfuse_halide.library.math.exponentials import exp, log1p

__all__ = ["Accumulator", "Moments", "merge_scan", "scan_start"]

_FLOATS = ("f32", "f64")


def _lowest(dtype: str) -> float:
    if dtype in _FLOATS:
        return float("-inf")
    return 0 if dtype[0] in "ub" else -(1 << (int(dtype[1:]) - 1))


def _highest(dtype: str) -> float:
    if dtype in _FLOATS:
        return float("inf")
    if dtype == "bool":
        return 1
    return (1 << (int(dtype[1:]) - (dtype[0] == "i"))) - 1


@dataclass(frozen=True)
class Accumulator:
    """A reduction whose state does not depend on how many values it took.

    `kind` is one of the representation's; `position` is the type of the second operand of `argmin` and
    `argmax`.
    """

    kind: str
    dtype: str
    position: str = "i64"

    @property
    def width(self) -> int:
        """Values of its state, which are also its operands."""
        return 2 if self.kind in ("argmin", "argmax") else 1

    def start(self) -> list[Value]:
        """The state before any value."""
        kind, dtype = self.kind, self.dtype
        if kind in ("sum", "xor_sum"):
            return [constant(0, dtype)]
        if kind == "prod":
            return [constant(1, dtype)]
        if kind in ("any", "all"):
            return [constant(kind == "all", "bool")]
        first = constant(_lowest(dtype) if kind in ("max", "argmax") else _highest(dtype), dtype)
        return [first] if self.width == 1 else [first, constant(_highest(self.position), self.position)]

    def lift(self, operands: Sequence[Value]) -> list[Value]:
        """The state of one value."""
        if self.kind in ("any", "all") and not operands[0].type().is_bool():
            return [hl.logical_not(equal(operands[0], number(operands[0], 0)))]
        return list(operands)

    def merge(self, left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        """The state of both."""
        a, b = left[0], right[0]
        if self.kind == "sum":
            return [a | b if a.type().is_bool() else add(a, b)]
        if self.kind == "prod":
            return [a & b if a.type().is_bool() else mul(a, b)]
        if self.kind == "xor_sum":
            return [bit_xor(a, b)]
        if self.kind in ("any", "all"):
            return [a | b if self.kind == "any" else a & b]
        if self.kind in ("min", "max"):
            return [(minimum if self.kind == "min" else maximum)(a, b)]
        better = _beats(self.kind[3:], b, a) | (_ties(a, b) & (right[1] < left[1]))
        return [hl.select(better, b, a), hl.select(better, right[1], left[1])]


def _beats(kind: str, a: Value, b: Value) -> Value:
    found = a < b if kind == "min" else b < a
    if a.type().is_float():
        return found | (is_nan(a) & hl.logical_not(is_nan(b)))
    return found


def _ties(a: Value, b: Value) -> Value:
    return equal(a, b) | (is_nan(a) & is_nan(b)) if a.type().is_float() else equal(a, b)


@dataclass(frozen=True)
class Moments:
    """Mean and sum of squared deviations (Welford). How many values it took is known where it is used."""

    dtype: str

    def start(self) -> list[Value]:
        """The state before any value."""
        return [constant(0, self.dtype), constant(0, self.dtype)]

    def take(self, state: Sequence[Value], value: Value, before: Value) -> list[Value]:
        """The state after one more value, of which there were `before`."""
        inverse = number(value, 1) / hl.cast(value.type(), before + 1)
        away = value - state[0]
        mean = _moved(state[0], away * inverse, value)
        return [mean, state[1] + away * (value - mean)]

    def merge(
        self, left: Sequence[Value], count: Value, right: Sequence[Value], other: Value
    ) -> tuple[list[Value], Value]:
        """The state of both, and its count."""
        total = count + other
        away = right[0] - left[0]
        part = other / hl.select(total > number(total, 0), total, number(total, 1))
        mean = _moved(left[0], away * part, right[0])
        # nothing is between a state and an empty one, also where a square would be infinite
        return [mean, left[1] + right[1] + away * (count * part) * away], total


def _moved(mean: Value, step: Value, other: Value) -> Value:
    """A mean after a step towards another: there is no step back from infinity."""
    found = mean + step
    return hl.select(is_nan(found), mean + other, found)


def scan_start(kind: str, values: Sequence[Value]) -> list[Value]:
    """The running state before any value, which changes no value that it is merged with."""
    like = values[0]
    if kind == "sum":
        return [number(like, -0.0 if like.type().is_float() else 0)]
    if kind == "prod":
        return [number(like, 1)]
    if kind == "logsumexp":
        return [number(like, float("-inf"))]
    first = like.type().max() if kind == "min" else like.type().min()
    return [first, *(number(value, 0) for value in values[1:])]


def merge_scan(kind: str, left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
    """A running state and the next value."""
    a, b = left[0], right[0]
    if kind == "sum":
        return [add(a, b)]
    if kind == "prod":
        return [mul(a, b)]
    if kind == "logsumexp":
        high, low = maximum(a, b), minimum(a, b)
        found = high + log1p(exp(low - high))
        return [hl.select(is_inf(high) | is_nan(high), high, found)]
    later = _beats(kind, b, a) | _ties(a, b)
    return [hl.select(later, b, a), hl.select(later, right[1], left[1])]
