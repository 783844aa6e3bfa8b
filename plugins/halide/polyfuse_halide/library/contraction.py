"""Multiplications and additions in one step, within functions of kernels whose other arithmetic is strict.

Halide strictifies all arithmetic of a pipeline or what it is asked to. A kernel that contracts asks so for
everything that a stage is defined to be (`strict`); but what an inlined stage is defined to be by itself
stays as it is. Such a stage takes numbers by their bits, since indices are integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

import halide as hl

from polyfuse_halide.library.math.arithmetic import Value, bits_of, expr, from_bits

__all__ = ["contraction", "elementary", "multiply_add", "strict"]

_contracts: ContextVar[bool] = ContextVar("contracts", default=False)


@contextmanager
def contraction(wanted: bool) -> Iterator[None]:
    """Build kernels that contract, or that do not."""
    before = _contracts.set(wanted)
    try:
        yield
    finally:
        _contracts.reset(before)


def strict(value: Value) -> Value:
    """What a stage is defined to be, where not everything is strict already."""
    return hl.strict_float(value) if _contracts.get() else value


def multiply_add(a: Value, b: Value, c: Value) -> Value:
    """a * b + c of 32 bits, rounded once where the CPU can and the kernel contracts.

    The sum must not be added to another such sum: LLVM may regroup what belongs to two of them.
    """
    if not _contracts.get() or a.type().bits() != 32:
        return a * b + c
    return expr(_fused()[bits_of(a), bits_of(b), bits_of(c)])


@cache
def _fused() -> Any:
    func, variables = hl.Func("multiply_add"), [hl.Var(name) for name in "abc"]
    a, b, c = (from_bits(hl.Float(32), hl.Expr(variable)) for variable in variables)
    func[tuple(variables)] = a * b + c
    return func


def elementary(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """A function that kernels which contract call as a stage: its argument is walked once, whatever the
    function does with it.
    """

    @cache
    def stage() -> Any:
        func, variable = hl.Func(function.__name__), hl.Var("x")
        func[variable] = strict(function(from_bits(hl.Float(32), hl.Expr(variable))))
        return func

    @wraps(function)
    def call(x: Value) -> Value:
        if not _contracts.get() or x.type().bits() != 32:
            return function(x)
        return expr(stage()[bits_of(x)])

    return call
