"""Weights in the layout of oneDNN, made once for each parameter: with freezing, or where the core has room
for the copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from polyfuse.ir.nodes import Buffer, ExternCall, View
from polyfuse.ir.types import DType
from polyfuse.plugin import CallSite, Claim, No, ReplacementCalls

_WEIGHTS = {
    "mkldnn._linear_pointwise.default": 1,
    "mkldnn._linear_pointwise.binary": 2,
    "mkldnn._convolution_pointwise.default": 1,
    "mkldnn._convolution_pointwise.binary": 2,
}
"""Where the weight stands among the arguments of an operator, by its name."""

_CONVOLUTION = "aten.convolution.default"


def with_packed(applies: Callable[[CallSite], Claim], unasked: bool = False) -> Callable[[CallSite], Claim]:
    """`applies`, for calls whose weight is a parameter that may be packed in the library's layout; `unasked`:
    also without freezing.
    """

    def claim(site: CallSite) -> Claim:
        if not (site.freezing or (unasked and site.packing)) or not site.inference:
            return No("weights are packed once only with freezing, in graphs without gradients")
        if not site.freezing and not _can_be_watched(site):
            return No("a change of its weight of 16 bits could be missed, without freezing")
        if not site.can_precompute(_weight(site)):
            return No("its weight is no whole parameter in the order of a layer's")
        return applies(site)

    return claim


def _can_be_watched(site: CallSite) -> bool:
    """Whether sums of products show a change of the weight: those of 16 bits are rounded."""
    buffer = site.buffers.get(getattr(_weight(site), "buffer", ""))
    return buffer is not None and buffer.dtype is DType.f32


def packing(instead: Callable[[CallSite], ReplacementCalls]) -> Callable[[CallSite], ReplacementCalls]:
    """The call that `instead` makes, with a weight in the library's layout."""

    def made(site: CallSite) -> ReplacementCalls:
        found = instead(site)
        (call,) = found.nodes
        position = _WEIGHTS[call.op]
        weight = call.args[position]
        laid_out = _laid_out(site, call, weight)
        once = site.precompute(f"{call.name}_weight", *_layout(site, call), laid_out)
        packed = replace(call, args=(*call.args[:position], laid_out.view(), *call.args[position + 1 :]))
        return ReplacementCalls((once, packed), (laid_out,), found.takes_reader)

    return made


def _weight(site: CallSite) -> Any:
    """The weight of a call as a layer has it, a row for each result."""
    args = site.call.args
    if site.call.op == _CONVOLUTION:
        return args[1]
    view = args[1] if site.call.op == "aten.mm.out" else args[2]
    if not isinstance(view, View) or len(view.size) != 2:
        return view
    return replace(view, size=view.size[::-1], stride=view.stride[::-1])


def _laid_out(site: CallSite, call: ExternCall, weight: View) -> Buffer:
    buffer = site.buffers[weight.buffer]
    return replace(buffer, name=f"{call.name}_laid_out", dtype=None, kind="object")


def _layout(site: CallSite, call: ExternCall) -> tuple[str, View, tuple[object, ...]]:
    """The operator that lays a weight out, the weight, and the other arguments."""
    weight = _weight(site)
    if site.call.op == _CONVOLUTION:
        bias = _WEIGHTS[call.op] + 1  # after which come padding, stride, dilation and groups
        image = call.args[0].size
        size = image if all(isinstance(n, int) for n in image) else None
        return "mkldnn._reorder_convolution_weight.default", weight, (*call.args[bias + 1 : bias + 5], size)
    rows = call.args[0].size[:-1]
    count = prod(rows) if all(isinstance(n, int) for n in rows) else None
    return "mkldnn._reorder_linear_weight.default", weight, (count,)
