"""Convolutions: which the library's own operator can do, and its calls instead."""

from __future__ import annotations

from typing import Any

from polyfuse.ir.nodes import Buffer, ExternCall, View
from polyfuse.plugin import CallSite, Claim, No, ReplacementCalls, Yes
from polyfuse_cpp.onednn.following import activation_of, addend_of
from polyfuse_cpp.onednn.layouts import order, target
from polyfuse_cpp.onednn.library import convolved_types


def convolution_alone(site: CallSite) -> Claim:
    """Whether the library's own operator can do a convolution."""
    reason = _convolution_fault(site)
    return No(reason) if reason else Yes()


def convolution_fused(site: CallSite) -> Claim:
    """Whether it can do a convolution and what follows in the same go."""
    reason = _convolution_fault(site)
    if reason:
        return No(reason)
    if activation_of(site) is None and addend_of(site) is None:
        return No("nothing follows that the library does in the same go")
    output = target(site)
    if output.size != site.output.size or output.stride != site.output.stride:
        return No("what follows has another shape or order")
    return Yes()


def _convolution_fault(site: CallSite) -> str:
    """Why the library's own operator cannot do a convolution, or an empty text."""
    image, weight, bias = site.call.args[:3]
    views = [image, weight, *([] if bias is None else [bias])]
    if not all(isinstance(v, View) and v.dtype is None for v in views):
        return "an operand is no tensor"
    (kind, *others) = {site.buffers[v.buffer].dtype for v in views}
    if others or kind not in convolved_types():
        return "its types are none that the library has instructions for"
    if site.call.args[6]:
        return "it is transposed"
    if any(n == 0 for v in views for n in v.size):
        return "an operand is empty"
    if not order(weight) or (bias is not None and bias.stride != (1,)):
        return "the weight or the bias is not contiguous, with its channels second or last"
    if not order(image) & order(site.output):
        return "the image and the result are not both contiguous, nor have both their channels last"
    return ""


def convolution(site: CallSite) -> ReplacementCalls:
    """The library's call in place of a convolution."""
    args = (*_convolved(site), "none", (), "")
    return ReplacementCalls((_convolution_call(site, "default", "alone", args, site.output),))


def convolution_and_more(site: CallSite) -> ReplacementCalls:
    """The library's call in place of a convolution and of what follows."""
    output, activation = target(site), activation_of(site)
    if activation is not None:
        args: tuple[Any, ...] = (*_convolved(site), *activation)
        call = _convolution_call(site, "default", activation[0], args, output)
        return ReplacementCalls((call,), takes_reader=True)
    addend = addend_of(site)
    assert addend is not None
    image, *others = _convolved(site)
    other = View(addend, output.size, output.stride, 0, None)
    args = (image, other, *others, "add", None, None, (), None)
    return ReplacementCalls((_convolution_call(site, "binary", "added", args, output),), takes_reader=True)


def _convolved(site: CallSite) -> tuple[Any, ...]:
    """The arguments of a convolution in the order of the library's operator."""
    image, weight, bias, stride, padding, dilation, _, _, groups = site.call.args[:9]
    return image, weight, bias, padding, stride, dilation, groups


def _convolution_call(
    site: CallSite, overload: str, ending: str, args: tuple[Any, ...], output: Buffer
) -> ExternCall:
    op = f"mkldnn._convolution_pointwise.{overload}"
    return ExternCall(f"{site.call.name}_{ending}", op, args, (), (output.name,))
