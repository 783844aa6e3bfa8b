"""Linear layers: which calls the library can do, and its calls instead."""

from __future__ import annotations

from typing import Any

from polyfuse.ir.nodes import Buffer, ExternCall, View
from polyfuse.plugin import CallSite, Claim, No, ReplacementCalls, Yes
from polyfuse.symbolic import IndexLike, contiguous_strides
from polyfuse_cpp.onednn.following import Activation, activation_of, addend_of
from polyfuse_cpp.onednn.layouts import contiguous, target
from polyfuse_cpp.onednn.library import convolved_types


def linear_alone(site: CallSite) -> Claim:
    """Whether the library can do a matmul, with a bias or without."""
    reason = _linear_fault(site) or _transposed_fault(site)
    return No(reason) if reason else Yes()


def linear_fused(site: CallSite) -> Claim:
    """Whether it can do a matmul and what follows in the same go."""
    reason = _linear_fault(site) or _order_fault(site)
    if reason:
        return No(reason)
    if activation_of(site) is None and addend_of(site) is None:
        return No("nothing follows that the library does in the same go")
    output = target(site)
    if not contiguous(output) or not output.size or output.size[-1] != site.output.size[-1]:
        return No("what follows has another shape or order")
    return Yes()


def _linear_fault(site: CallSite) -> str:
    """Why the library cannot do a call, or an empty text."""
    bias, rows, weight = operands(site)
    if not isinstance(rows, View) or not isinstance(weight, View) or len(rows.size) != 2:
        return "an operand is no matrix"
    kinds = {None if v.dtype is not None else site.buffers[v.buffer].dtype for v in (rows, weight)}
    if len(kinds) > 1 or not kinds <= convolved_types():
        return "only f32, and 16-bit floats where this CPU has instructions for them, are multiplied there"
    if any(n == 0 for n in (*rows.size, *weight.size)):
        return "it is empty"
    if not contiguous(site.output):
        return "the result is not contiguous"
    if bias is not None:
        plain = isinstance(bias, View) and bias.dtype is None and bias.size == (weight.size[1],)
        if not plain or bias.stride != (1,) or site.buffers[bias.buffer].dtype not in kinds:
            return "what is added is no vector with a number for each column"
    if any(value != 1 for _, value in site.call.kwargs) or len(site.call.args) > 3:
        return "it is scaled"
    return ""


def _order_fault(site: CallSite) -> str:
    """Why operands cannot be read as rows of a larger tensor and as a layer's weight, or an empty text."""
    _, rows, weight = operands(site)
    if rows.stride != (rows.size[1], 1) or weight.stride != (1, weight.size[0]):
        return "an operand is not contiguous along the depth"
    return ""


def _transposed_fault(site: CallSite) -> str:
    """Why operands cannot be read as matrices, transposed or not, or an empty text."""
    if not all(_is_matrix(view) for view in operands(site)[1:]):
        return "an operand is not contiguous along either axis"
    return ""


def _is_matrix(view: View) -> bool:
    """Whether lines of one axis follow each other without gaps within, perhaps with gaps between."""
    (n, m), (down, across) = view.size, view.stride
    return (across == 1 and _at_least(down, m)) or (down == 1 and _at_least(across, n))


def _at_least(step: IndexLike, extent: IndexLike) -> bool:
    return step == extent or (isinstance(step, int) and isinstance(extent, int) and step >= extent)


def operands(site: CallSite) -> tuple[Any, Any, Any]:
    """Bias, input and weight of a call."""
    args = site.call.args
    return (None, *args[:2]) if site.call.op == "aten.mm.out" else args[:3]


def linear(site: CallSite) -> ReplacementCalls:
    """The library's call in place of a matmul."""
    bias, rows, weight = operands(site)
    (depth, count), (down, across) = weight.size, weight.stride
    columns = View(weight.buffer, (count, depth), (across, down), weight.offset, None)
    args = (rows, columns, bias, "none", (), "")
    name = f"{site.call.name}_onednn"
    node = ExternCall(name, "mkldnn._linear_pointwise.default", args, (), (site.output.name,))
    return ReplacementCalls((node,))


def linear_and_more(site: CallSite) -> ReplacementCalls:
    """The library's call in place of a matmul and of what follows."""
    output, activation = target(site), activation_of(site)
    if activation is not None:
        return ReplacementCalls((_linear_call(site, output, activation),), takes_reader=True)
    addend = addend_of(site)
    assert addend is not None
    rows, columns, bias = _linear_views(site, output)
    other = View(addend, output.size, output.stride, 0, None)
    args = (rows, other, columns, bias, "add")
    name = f"{site.call.name}_added"
    node = ExternCall(name, "mkldnn._linear_pointwise.binary", args, (), (output.name,))
    return ReplacementCalls((node,), takes_reader=True)


def _linear_call(site: CallSite, output: Buffer, activation: Activation) -> ExternCall:
    attr = activation[0]
    args = (*_linear_views(site, output), *activation)
    name = f"{site.call.name}_{attr}"
    return ExternCall(name, "mkldnn._linear_pointwise.default", args, (), (output.name,))


def _linear_views(site: CallSite, output: Buffer) -> tuple[View, View, Any]:
    """Input (in the dimensions of the output), weight (a row for each result) and bias."""
    bias, rows, weight = operands(site)
    depth = rows.size[1]
    size = (*output.size[:-1], depth)
    folded = View(rows.buffer, size, contiguous_strides(size), rows.offset, None)
    columns = View(weight.buffer, (weight.size[1], depth), (depth, 1), weight.offset, None)
    return folded, columns, bias
