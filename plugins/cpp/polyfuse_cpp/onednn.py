"""oneDNN's linear layers and convolutions with what follows them, as choices beside what torch calls.

torch multiplies matrices of f32 with another library, and adds activations and residuals in passes of their
own. Its operators `mkldnn::_linear_pointwise` and `mkldnn::_convolution_pointwise` do both at once. Weights
are laid out for them at each call, for they may change in between; `packed_weights` has the same with weights
that are laid out once, where freezing allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite, prod
from pathlib import Path
from typing import Any

import torch

from polyfuse.ir.expr import Expr, apply, cast, const, walk
from polyfuse.ir.nodes import Buffer, ExternCall, Pointwise, View
from polyfuse.ir.types import DType
from polyfuse.plugin import CallSite, Choice, Claim, No, ReplacementCalls, Yes
from polyfuse.symbolic import IndexLike, contiguous_strides, evaluate
from polyfuse_cpp.isa import detect_isa_name
from polyfuse_cpp.packed_weights import packing, with_packed

_LINEAR = ("aten.addmm.out", "aten.mm.out")
_CONVOLUTION = ("aten.convolution.default",)


def library_choices() -> tuple[Choice, ...]:
    """What is offered on this machine: nothing where torch is built without oneDNN, or it is switched off."""
    if not offered():
        return ()
    packed = (
        Choice(
            "onednn_fused_packed",
            _LINEAR,
            with_packed(_linear_fused),
            instead=packing(_linear_and_more),
            preferred=_narrow_packed_pays,
        ),
        Choice(
            "onednn_packed",
            _LINEAR,
            with_packed(_linear_alone),
            instead=packing(_linear),
            preferred=lambda site: _beats_mkl(site) or _narrow_packed_pays(site),
        ),
        Choice(
            "onednn_fused_conv_packed",
            _CONVOLUTION,
            with_packed(_convolution_fused, unasked=True),
            instead=packing(_convolution_and_more),
            preferred=_packing_pays,
        ),
        Choice(
            "onednn_conv_packed",
            _CONVOLUTION,
            with_packed(_convolution_alone, unasked=True),
            instead=packing(_convolution),
            preferred=_packing_pays,
        ),
    )
    return (
        *packed,
        Choice("onednn", _LINEAR, applies=_linear_alone, instead=_linear, preferred=_beats_mkl),
        Choice("onednn_fused", _LINEAR, applies=_linear_fused, instead=_linear_and_more),
        Choice(
            "onednn_fused_conv",
            _CONVOLUTION,
            applies=_convolution_fused,
            instead=_convolution_and_more,
            preferred=_fusing_pays,
        ),
    )


def offered() -> bool:
    """Whether this torch brings oneDNN, and it is not switched off."""
    library = torch.backends.mkldnn
    return library.is_available() and bool(getattr(library, "enabled", True))


@lru_cache(maxsize=1)
def _instructions() -> frozenset[DType]:
    """The types of 16 bits that the library computes by instructions of this CPU."""
    known = {DType.bf16: "_is_mkldnn_bf16_supported", DType.f16: "_is_mkldnn_fp16_supported"}
    return frozenset(kind for kind, name in known.items() if getattr(torch.ops.mkldnn, name)())


def narrow_types() -> frozenset[DType]:
    """The types of 16 bits that the library computes faster than anything that torch has beside it."""
    return _instructions() if offered() else frozenset()


def convolved_types() -> frozenset[DType]:
    """The types that the library convolves faster than anything that torch has beside it."""
    return narrow_types() | {DType.f32} if offered() else frozenset()


# What is known without timing.


_FEW_PAIRS = 1 << 23
"""Multiplications up to which MKL is as fast or faster: a call of oneDNN costs 13 microseconds more, and
gains a tenth of the rest (one thread of Zen 4, MKL of torch 2.13: half as many take 1.04 to 1.11 times as
long, an eighth 1.4 to 1.6)."""

_NARROW = (12, 8), (32, 2)
"""Columns up to which MKL loses more, and by what the number above is divided for them."""

_LANES = 16
"""Numbers in a register of AVX-512."""

_ROWS_READ_ONCE = 2
"""Rows for which laying out the other matrix takes longer than the matmul."""

_COLUMNS_READ_ONCE = 4
"""Columns of a layer's weight with which MKL multiplies rows as fast as memory brings them."""

_COLUMNS_LAID_OUT_FOR = range(2, 13), 1024
"""Numbers of columns for which rows that are contiguous along the other axis are laid out by oneDNN in less
time than MKL loses: few, which MKL does badly, and from the second on, where the matmul is long.
"""


def _beats_mkl(site: CallSite) -> bool:
    """Whether torch would call MKL on a CPU whose AVX-512 it does not use, since another maker's. There,
    oneDNN takes less time (0.9 of it on Zen 4), with few rows as with hundreds, but for small
    matmuls, and but for a row or two of a matrix whose rows are contiguous: oneDNN lays it out first, which
    takes longer than reading it (2048x2048: 1.38 and 0.37 ms for one row, 1.50 and 0.89 for two, 1.76 and
    2.05 for four). So it does with rows that are transposed, as in a weight's gradient. With AVX2 alone, MKL
    is the faster one, by 3 to 25 %.
    """
    _, rows, weight = _operands(site)
    extents = _extents(site)
    if not extents or _is_narrow(site) or _is_laid_out(rows, weight, extents):
        return False
    few = _FEW_PAIRS // next((by for columns, by in _NARROW if extents[-1] <= columns), 1)
    return prod(extents) >= few and torch.backends.mkl.is_available() and _mkl_leaves_lanes()


_ROWS_OF_PAIRS = 16
"""Rows from which 16-bit numbers of a packed weight fill the library's tiles."""


def _narrow_packed_pays(site: CallSite) -> bool:
    """Whether a matmul of 16-bit numbers spends its time on the layout of its weight, which the library's
    instructions want in pairs, and which torch has laid out at each call; what follows costs passes of its
    own there. Few rows are bound by reading the weight.
    """
    extents = _extents(site)
    return _is_narrow(site) and bool(extents) and extents[0] >= _ROWS_OF_PAIRS


def _extents(site: CallSite) -> list[int]:
    """Rows, depth and columns of a matmul, by the likely values of what varies; empty where nobody can guess
    one.
    """
    _, rows, weight = _operands(site)
    try:
        return [evaluate(extent, site.hints) for extent in (*rows.size, weight.size[1])]
    except KeyError:
        return []


def _is_narrow(site: CallSite) -> bool:
    """Whether the operands of a matmul have 16 bits."""
    return site.buffers[_operands(site)[2].buffer].dtype is not DType.f32


def _is_laid_out(rows: View, weight: View, extents: list[int]) -> bool:
    """Whether oneDNN would spend more time on the layout of an operand than it saves."""
    count, depth, columns = extents
    if columns == 1:
        return True
    if count <= _ROWS_READ_ONCE and weight.stride[1] == 1 and weight.stride[0] != 1:
        return True
    if rows.stride[0] == 1 and rows.stride[1] != 1:
        few, many = _COLUMNS_LAID_OUT_FOR
        return columns not in few and columns < many
    return weight.stride[0] == 1 and columns <= _COLUMNS_READ_ONCE and depth >= 2 * _LANES


def _mkl_leaves_lanes() -> bool:
    return vendor() not in ("", "GenuineIntel") and detect_isa_name() == "avx512"


_LARGE_WEIGHT = 1 << 16
"""Numbers from which laying a weight out takes longer than finding out that it has not changed."""


def _packing_pays(site: CallSite) -> bool:
    """Whether laying out the weight of a convolution is a large part of it: a fourth, where the window is 3x3
    and the image 7x7. Weights of 1x1 windows are laid out at the speed of memory, small ones in no time, but
    for those of 16 bits, which the library's instructions want in pairs.
    """
    weight = site.call.args[1]
    wide = prod(n for n in weight.size[2:] if isinstance(n, int)) > 1
    narrow = site.buffers[weight.buffer].dtype is not DType.f32
    return (wide or narrow) and _fusing_pays(site) and _numel(weight) >= _LARGE_WEIGHT


def _numel(view: View) -> int:
    return prod(n for n in view.size if isinstance(n, int))


def _fusing_pays(site: CallSite) -> bool:
    """Whether the channels come last: otherwise the library spends its time on other layouts."""
    return site.inference and "last" in _order(site.call.args[0]) and "last" in _order(site.output)


@lru_cache(maxsize=1)
def vendor(path: Path = Path("/proc/cpuinfo")) -> str:
    """Who made the CPU, where it is an x86-64 and the system says."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    words = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in words if key.strip() == "vendor_id"), "")


# What follows.


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

_Activation = tuple[str, tuple[float, ...], str]
"""An activation's name, its scalars and its variant, as the library's operators take them."""


def _activation(site: CallSite) -> _Activation | None:
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


def _addend(site: CallSite) -> str | None:
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
    return name if same and (_contiguous(buffer) or buffer.stride == _target(site).stride) else None


def _result_read(site: CallSite) -> Expr | None:
    """The one expression in the reader that is the call's result."""
    if site.reader is None:
        return None
    found = {e for e in walk(site.reader.value) if e.op == "load" and e.buffer == site.output.name}
    return next(iter(found)) if len(found) == 1 else None


# Linear layers.


def _linear_alone(site: CallSite) -> Claim:
    reason = _linear_fault(site) or _transposed_fault(site)
    return No(reason) if reason else Yes()


def _linear_fused(site: CallSite) -> Claim:
    reason = _linear_fault(site) or _order_fault(site)
    if reason:
        return No(reason)
    if _activation(site) is None and _addend(site) is None:
        return No("nothing follows that the library does in the same go")
    output = _target(site)
    if not _contiguous(output) or not output.size or output.size[-1] != site.output.size[-1]:
        return No("what follows has another shape or order")
    return Yes()


def _linear_fault(site: CallSite) -> str:
    """Why the library cannot do a call, or an empty text."""
    bias, rows, weight = _operands(site)
    if not isinstance(rows, View) or not isinstance(weight, View) or len(rows.size) != 2:
        return "an operand is no matrix"
    kinds = {None if v.dtype is not None else site.buffers[v.buffer].dtype for v in (rows, weight)}
    if len(kinds) > 1 or not kinds <= convolved_types():
        return "only f32, and 16-bit floats where this CPU has instructions for them, are multiplied there"
    if any(n == 0 for n in (*rows.size, *weight.size)):
        return "it is empty"
    if not _contiguous(site.output):
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
    _, rows, weight = _operands(site)
    if rows.stride != (rows.size[1], 1) or weight.stride != (1, weight.size[0]):
        return "an operand is not contiguous along the depth"
    return ""


def _transposed_fault(site: CallSite) -> str:
    """Why operands cannot be read as matrices, transposed or not, or an empty text."""
    if not all(_is_matrix(view) for view in _operands(site)[1:]):
        return "an operand is not contiguous along either axis"
    return ""


def _is_matrix(view: View) -> bool:
    """Whether lines of one axis follow each other without gaps within, perhaps with gaps between."""
    (n, m), (down, across) = view.size, view.stride
    return (across == 1 and _at_least(down, m)) or (down == 1 and _at_least(across, n))


def _at_least(step: IndexLike, extent: IndexLike) -> bool:
    return step == extent or (isinstance(step, int) and isinstance(extent, int) and step >= extent)


def _operands(site: CallSite) -> tuple[Any, Any, Any]:
    """Bias, input and weight of a call."""
    args = site.call.args
    return (None, *args[:2]) if site.call.op == "aten.mm.out" else args[:3]


def _linear(site: CallSite) -> ReplacementCalls:
    bias, rows, weight = _operands(site)
    (depth, count), (down, across) = weight.size, weight.stride
    columns = View(weight.buffer, (count, depth), (across, down), weight.offset, None)
    args = (rows, columns, bias, "none", (), "")
    name = f"{site.call.name}_onednn"
    node = ExternCall(name, "mkldnn._linear_pointwise.default", args, (), (site.output.name,))
    return ReplacementCalls((node,))


def _linear_and_more(site: CallSite) -> ReplacementCalls:
    output, activation = _target(site), _activation(site)
    if activation is not None:
        return ReplacementCalls((_linear_call(site, output, activation),), takes_reader=True)
    addend = _addend(site)
    assert addend is not None
    rows, columns, bias = _linear_views(site, output)
    other = View(addend, output.size, output.stride, 0, None)
    args = (rows, other, columns, bias, "add")
    name = f"{site.call.name}_added"
    node = ExternCall(name, "mkldnn._linear_pointwise.binary", args, (), (output.name,))
    return ReplacementCalls((node,), takes_reader=True)


def _linear_call(site: CallSite, output: Buffer, activation: _Activation) -> ExternCall:
    attr = activation[0]
    args = (*_linear_views(site, output), *activation)
    name = f"{site.call.name}_{attr}"
    return ExternCall(name, "mkldnn._linear_pointwise.default", args, (), (output.name,))


def _linear_views(site: CallSite, output: Buffer) -> tuple[View, View, Any]:
    """Input (in the dimensions of the output), weight (a row for each result) and bias."""
    bias, rows, weight = _operands(site)
    depth = rows.size[1]
    size = (*output.size[:-1], depth)
    folded = View(rows.buffer, size, contiguous_strides(size), rows.offset, None)
    columns = View(weight.buffer, (weight.size[1], depth), (depth, 1), weight.offset, None)
    return folded, columns, bias


# Convolutions.


def _convolution_alone(site: CallSite) -> Claim:
    reason = _convolution_fault(site)
    return No(reason) if reason else Yes()


def _convolution_fused(site: CallSite) -> Claim:
    reason = _convolution_fault(site)
    if reason:
        return No(reason)
    if _activation(site) is None and _addend(site) is None:
        return No("nothing follows that the library does in the same go")
    output = _target(site)
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
    if not _order(weight) or (bias is not None and bias.stride != (1,)):
        return "the weight or the bias is not contiguous, with its channels second or last"
    if not _order(image) & _order(site.output):
        return "the image and the result are not both contiguous, nor have both their channels last"
    return ""


def _convolution(site: CallSite) -> ReplacementCalls:
    args = (*_convolved(site), "none", (), "")
    return ReplacementCalls((_convolution_call(site, "default", "alone", args, site.output),))


def _convolution_and_more(site: CallSite) -> ReplacementCalls:
    output, activation = _target(site), _activation(site)
    if activation is not None:
        args: tuple[Any, ...] = (*_convolved(site), *activation)
        call = _convolution_call(site, "default", activation[0], args, output)
        return ReplacementCalls((call,), takes_reader=True)
    addend = _addend(site)
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


# Layouts.


def _target(site: CallSite) -> Buffer:
    """Where the reader puts its result."""
    reader: Pointwise | None = site.reader
    return site.output if reader is None else site.buffers[reader.output]


def _contiguous(buffer: Buffer) -> bool:
    return buffer.stride == contiguous_strides(buffer.size)


def _order(tensor: Buffer | View) -> frozenset[str]:
    """How a tensor lies without gaps: with its channels "second", "last", both where there is no difference,
    or neither.
    """
    batch, channels, *extents = tensor.size
    outer, *inner, step = contiguous_strides((batch, *extents, channels))
    orders = {"second": contiguous_strides(tensor.size), "last": (outer, step, *inner)}
    if not extents[1:]:  # the library knows no such order of images with one extent
        del orders["last"]
    return frozenset(name for name, stride in orders.items() if tensor.stride == stride)
