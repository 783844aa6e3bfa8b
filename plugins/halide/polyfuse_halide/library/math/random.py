"""Random numbers: Philox with ten rounds, as `polyfuse.ir.random` defines it."""

from __future__ import annotations

import math

import halide as hl

from polyfuse_halide.library.math.arithmetic import Value
from polyfuse_halide.library.math.exponentials import log

__all__ = ["random_bits", "random_normal", "random_uniform"]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def _word(value: int) -> Value:
    return hl.cast(hl.UInt(32), hl.i64(value))


def _words(seed: Value, offset: Value, count: int) -> list[Value]:
    """The first words for a seed and an offset, as unsigned numbers of 32 bits."""
    wide, narrow = hl.UInt(64), hl.UInt(32)
    shift = hl.cast(wide, 32)

    def halves(value: Value) -> tuple[Value, Value]:
        value = hl.reinterpret(wide, value)
        return hl.cast(narrow, value), hl.cast(narrow, value >> shift)

    key, (c0, c1) = list(halves(seed)), halves(offset)
    c2, c3 = _word(0), _word(0)
    for _ in range(10):
        left = hl.cast(wide, c0) * hl.cast(wide, _word(_MULTIPLIERS[0]))
        right = hl.cast(wide, c2) * hl.cast(wide, _word(_MULTIPLIERS[1]))
        c0, c1, c2, c3 = (
            hl.cast(narrow, right >> shift) ^ c1 ^ key[0],
            hl.cast(narrow, right),
            hl.cast(narrow, left >> shift) ^ c3 ^ key[1],
            hl.cast(narrow, left),
        )
        key = [part + _word(step) for part, step in zip(key, _WEYL)]
    return [c0, c1, c2, c3][:count]


def _unit(word: Value) -> Value:
    whole = hl.cast(hl.Int(32), word >> hl.cast(hl.UInt(32), 8))
    return hl.cast(hl.Float(32), whole) * hl.f32(2.0**-24)


def random_uniform(seed: Value, offset: Value) -> Value:
    """A number in [0, 1)."""
    return _unit(_words(seed, offset, 1)[0])


def random_normal(seed: Value, offset: Value) -> Value:
    """A number of the normal distribution."""
    first, second = (_unit(word) for word in _words(seed, offset, 2))
    radius = hl.sqrt(hl.f32(-2.0) * log(hl.f32(1.0) - first))
    return radius * hl.cos(hl.f32(2.0 * math.pi) * second)


def random_bits(seed: Value, offset: Value) -> Value:
    """64 random bits."""
    low, high = (hl.cast(hl.UInt(64), word) for word in _words(seed, offset, 2))
    return hl.reinterpret(hl.Int(64), low | (high << hl.cast(hl.UInt(64), 32)))
