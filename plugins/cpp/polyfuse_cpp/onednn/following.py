"""What follows a call that the library can do in the same go: an activation, or adding another tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite

import torch

from polyfuse.ir.expr import Expr, apply, cast, const, walk
from polyfuse.ir.types import DType
from polyfuse.plugin import CallSite
from polyfuse_cpp.onednn.layouts import contiguous, target


def _times(left: Expr, right: Expr) -> Expr:
    return apply("mul", left, right)


def _gelu(x: Expr) -> Expr:
    inner = apply("erf", _times(x, const(0.5**0.5, x.dtype)))
    return _times(_times(x, const(0.5, x.dtype)), apply("add", inner, const(1.0, x.dtype)))


def _gelu_by_tanh(x: Expr) -> Expr:
    cube = _times(_times(_times(x, x), x), const(0.044715, x.dtype))
    inner = apply("tanh", _times(apply("add", x, cube), const((2 / torch.pi) ** 0.5, x.dtype)))
    return _times(_times(x, const(0.5, x.dtype)), apply("add", inner, const(1.0, x.dtype)))


def _hard_swish(x: Expr) -> Expr:
    raised = apply("maximum", const(0.0, x.dtype), apply("add", x, const(3.0, x.dtype)))
    return apply("div", _times(x, apply("minimum", const(6.0, x.dtype), raised)), const(6.0, x.dtype))


_ACTIVATIONS: Mapping[tuple[str, str], Callable[[Expr], Expr]] = {
    ("sigmoid", ""): lambda x: apply("sigmoid", x),
    ("tanh", ""): lambda x: apply("tanh", x),
    ("swish", ""): lambda x: _times(x, apply("sigmoid", x)),
    ("hardswish", ""): _hard_swish,
    ("gelu", "none"): _gelu,
    ("gelu", "tanh"): _gelu_by_tanh,
}
"""The library's names of activations and their variants, and what they compute, as torch's are lowered. Its
`relu`, `hardtanh` and `hardsigmoid` are missing: they make numbers of NaN."""

Activation = tuple[str, tuple[float, ...], str]
"""An activation's name, its scalars and its variant, as the library's operators take them."""


def activation_of(site: CallSite) -> Activation | None:
    """The activation that alone follows a call."""
    result = _result_read(site)
    if site.reader is None or result is None:
        return None
    value, result = _computed(site.reader.value), cast(result, DType.f32)
    for (name, variant), compute in _ACTIVATIONS.items():
        if value == compute(result):
            return name, (), variant
    slope = _slope(value, result)
    return None if slope is None else ("leaky_relu", (slope,), "")


def _computed(stored: Expr) -> Expr:
    """What is stored, before it is rounded to 16 bits."""
    return stored.args[0] if stored.op == "cast" and stored.dtype.itemsize == 2 else stored


def _slope(value: Expr, x: Expr) -> float | None:
    """What numbers below zero are multiplied by, where that is all that `value` does to `x`."""
    if value.op != "where" or value.args[2].op != "mul":
        return None
    factor = next((e for e in value.args[2].args if e.op == "const"), None)
    if factor is None or not isinstance(factor.value, float) or not isfinite(factor.value):
        return None
    positive = apply("gt", x, const(0.0, x.dtype))
    return factor.value if value == apply("where", positive, x, _times(x, factor)) else None


def addend_of(site: CallSite) -> str | None:
    """The buffer that is added to the result element by element, with nothing else done."""
    result = _result_read(site)
    reader = site.reader
    if reader is None or result is None:
        return None
    value, summand = _computed(reader.value), cast(result, DType.f32)
    if value.op != "add" or summand not in value.args:
        return None
    other = next((e for e in value.args if e is not summand), None)
    if other is not None and other.op == "cast":
        other = other.args[0]
    if other is None or other.op != "load" or other.args or other.dtype is not result.dtype:
        return None
    name, index = other.buffer, other.index
    same = index == reader.index and name not in (reader.output, site.output.name)
    buffer = site.buffers[name]
    return name if same and (contiguous(buffer) or buffer.stride == target(site).stride) else None


def _result_read(site: CallSite) -> Expr | None:
    """The one expression in the reader that is the call's result; None where the reader stores another type,
    which the library's result does not have.
    """
    if site.reader is None or target(site).dtype is not site.output.dtype:
        return None
    found = {e for e in walk(site.reader.value) if e.op == "load" and e.buffer == site.output.name}
    return next(iter(found)) if len(found) == 1 else None
