"""Convolutions of few channels for each result, depthwise ones first, as loops: each result is a sum of a few
products, written out, with lanes along the channels. What follows fuses with it as with any loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from polyfuse.ir.expr import Expr, apply, cast, const, index_value, load, loads
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, Pointwise, TemplateCall, View
from polyfuse.ir.types import DType
from polyfuse.lowering.indexing.conditions import exists, masked
from polyfuse.lowering.reductions.gemm_loops import Unavailable, for_each_axis
from polyfuse.lowering.value import axes_of
from polyfuse.symbolic import (
    IndexLike,
    axis,
    axis_name,
    axis_size,
    coefficient,
    contiguous_strides,
    substitute,
)

_MOST_TAPS, _LARGE = 49, 25
_NARROW, _FEW_CHANNELS = 4, 16
"""Of windows of more than `_LARGE` numbers: columns and channels, below which they are the library's."""
MOST_TAPS_OF_LINES, SHORTEST_LINE = 32, 16
"""Of convolutions of lines: the largest window, and the shortest line of results."""
_INSIDE, _MOST_PRODUCTS = (2, 4), 36
"""Channels of groups that are no vector wide, but divide one, and most products for each of their results."""
_WIDEST = 8
"""Rows or columns of the widest margin."""
FEWEST_CHANNELS = 8
TYPES = (DType.f32, DType.bf16, DType.f16)
OF_LINES, _OF_VOLUMES = 3, 5
"""Dimensions of what is convolved along one axis, and along three."""


@dataclass(frozen=True)
class DepthwiseLoops:
    """What is done instead of a call.

    Attributes:
        nodes: what is laid out for the convolution, if anything, then the convolution.
        made: the buffers between them.
    """

    nodes: tuple[Pointwise, ...]
    made: tuple[Buffer, ...]


@dataclass(frozen=True)
class Margin:
    """Zeros around the image of a convolution, which a node of their own puts there.

    Attributes:
        node: the name of that node.
        image: what is within.
        before: rows above and columns on the left.
    """

    node: str
    image: View
    before: tuple[int, int]


def margin_of(call: TemplateCall, graph: Graph) -> Margin | None:
    """The margin of the image of a convolution that adds none itself, where nothing else reads that."""
    image, padding = call.args[0], call.args[4]
    if not isinstance(image, View) or any(padding) or image != graph.buffers[image.buffer].view():
        return None
    name = image.buffer
    touching = [graph.nodes[at] for at in graph.uses.touching(name)]
    if len(touching) != 2 or touching[1].name != call.name or graph.is_output(name):
        return None
    made, whole = touching[0], image.size
    if not isinstance(made, Pointwise) or made.value.op != "load" or made.value.buffer == name:
        return None
    inner = graph.buffers[made.value.buffer]
    kind = inner.dtype
    if kind not in TYPES or len(inner.size) != len(whole) or inner.size[:2] != whole[:2]:
        return None
    room = [a - b for a, b in zip(whole[2:], inner.size[2:], strict=True)]
    axes, zero = axes_of(whole), const(0.0, DType.f32)
    for before in product(*(range(n + 1) for n in room if isinstance(n, int) and 0 <= n <= _WIDEST)):
        if len(before) != 2:
            return None
        at = [*axes[:2], *(a - n for a, n in zip(axes[2:], before, strict=True))]
        where = sum(i * s for i, s in zip(at, inner.stride, strict=True))
        value = masked(load(inner.name, where, kind), exists(at, inner.size), zero)
        if value is made.value or value == made.value:
            return Margin(made.name, inner.view(), before)
    return None


def of_lines(call: TemplateCall) -> bool:
    """Whether a convolution is one along one axis."""
    image = call.args[0]
    return isinstance(image, View) and len(image.size) == OF_LINES


def read_of_lines(call: TemplateCall, graph: Graph) -> IndexLike:
    """How many numbers of each line of a convolution's results are read. A causal one has as many too many
    as its window is longer than one.
    """
    output = graph.buffers[call.outputs[0]]
    whole, readers = output.size[-1], graph.uses.readers.get(output.name, ())
    if graph.is_output(output.name) or len(output.size) != OF_LINES or not isinstance(whole, int):
        return whole
    ends = [0]
    for node in (graph.nodes[at] for at in readers):
        if not isinstance(node, Pointwise):
            return whole
        found = [r for r in loads(*node.expressions()) if r.buffer == output.name]
        ends += [_end_of_line(r.index, node.axes, output, whole) for r in found]
    return max(ends) or whole


def _end_of_line(index: IndexLike, axes: Sequence[IndexLike], output: Buffer, whole: int) -> int:
    """Behind the last number of a line that is read where each line is read from one position on."""
    first, last = substitute(index, {axis_name(a): 0 for a in axes}), 1
    rest, line = index - first, output.stride[1]
    if not isinstance(line, int) or not isinstance(first, int):
        return whole
    for name, size in ((axis_name(a), axis_size(a)) for a in axes):
        step = coefficient(index, name)
        if not isinstance(step, int) or not isinstance(size, int):
            return whole
        rest = rest - step * axis(name, size)
        if step % line:
            if step != 1 or last != 1:
                return whole
            last = size
    return min(whole, first % line + last) if rest == 0 else whole


def depthwise_loops(
    call: TemplateCall,
    buffers: Mapping[str, Buffer],
    margin: Margin | None = None,
    read: IndexLike | None = None,
) -> DepthwiseLoops:
    """The loops of a convolution of images with channels last, a small window and one, two or four channels
    for each result, and of the margin of its image, which these read without it; or of lines, with one
    channel for each result, of which only so many results as are read are computed. Numbers of 16 bits are
    added up in f32.

    Raises:
        Unavailable: it is none.
    """
    image, weight, bias, strides, padding, dilation, transposed, _, groups = call.args
    output = buffers[call.outputs[0]]
    if transposed or not isinstance(image, View) or not isinstance(weight, View):
        raise Unavailable("it is no convolution of images")
    lines = len(image.size) == OF_LINES
    volumes = len(image.size) == _OF_VOLUMES
    if not lines and not volumes and len(image.size) != OF_LINES + 1:
        raise Unavailable("it is no convolution of lines, images or volumes")
    channels, views = image.size[1], [image, weight, *([bias] if isinstance(bias, View) else [])]
    inside = weight.size[1]
    few = inside in _INSIDE and weight.size[0] == channels and not lines
    if not few and (weight.size[:2] != (groups, 1) or channels != groups):
        raise Unavailable("it is not depthwise")
    kinds = {output.dtype, *(buffers[v.buffer].dtype for v in views)}
    if len(kinds) > 1 or output.dtype not in TYPES or any(v.dtype is not None for v in views):
        raise Unavailable("it is not of f32 or of a type of 16 bits")
    window = [n for n in weight.size[2:] if isinstance(n, int)]
    most = MOST_TAPS_OF_LINES if lines else _MOST_TAPS
    if len(window) != len(image.size) - 2 or not 1 < prod(window) <= most:
        raise Unavailable("its window is too large")
    if not lines and prod(window) > _LARGE and not _fits_large_windows(output):
        raise Unavailable("its window is too large for its type, or for so few columns or channels")
    if few and isinstance(inside, int) and inside * prod(window) > _MOST_PRODUCTS:
        raise Unavailable("its window is too large for a group of channels")
    if not isinstance(channels, int) or channels < FEWEST_CHANNELS:
        raise Unavailable("its channels are few")
    if any(n == 0 for v in views for n in v.size):
        raise Unavailable("it is empty")
    numbers = (strides, padding, dilation)
    if lines:
        size = (*output.size[:2], output.size[2] if read is None else read)
        return _lines(call, image, weight, bias, numbers, replace(output, size=size))
    # torch gives volumes with their channels second, whatever it reads: what lays them out is in the loops
    if image.stride[1] != 1 or (output.stride[1] != 1 and not volumes):
        raise Unavailable("its channels do not come last")
    if margin is not None:
        image, padding = margin.image, margin.before
        if image.stride[1] != 1:
            raise Unavailable("its channels do not come last within the margin")
    laid_out, first = _laid_out(call, weight, window, output)
    numbers = (strides, padding, dilation)
    node = _convolution(call, image, laid_out.view(), bias, numbers, output, margin is None)
    return DepthwiseLoops((first, node), (laid_out,))


def _fits_large_windows(output: Buffer) -> bool:
    """Whether a convolution's loops are tiles of columns, faster than a library for large windows."""
    _, channels, *extents = output.size
    if not isinstance(channels, int) or not isinstance(extents[-1], int) or output.dtype is not DType.f32:
        return False
    known = all(isinstance(n, int) for n in extents)
    return known and channels >= _FEW_CHANNELS and extents[-1] >= _NARROW


def _lines(
    call: TemplateCall,
    image: View,
    weight: View,
    bias: object,
    numbers: Sequence[Sequence[int]],
    output: Buffer,
) -> DepthwiseLoops:
    """The loops of a convolution of lines, with lanes along them."""
    length = output.size[2]
    if isinstance(length, int) and length < SHORTEST_LINE:
        raise Unavailable("its lines are short")
    if output.stride[2] != 1:
        raise Unavailable("its results do not lie one behind the other, as what they read does")
    order = (2, 1, 0)
    taps = replace(weight, size=_at(weight.size, order), stride=_at(weight.stride, order))
    if image.stride[2] == 1:
        return DepthwiseLoops((_convolution(call, image, taps, bias, numbers, output, True),), ())
    stride = contiguous_strides(image.size)
    line = replace(output, name=f"{call.name}_lines", size=image.size, stride=stride, kind="temp")
    axes, kind = tuple(axis(f"i{d}", n) for d, n in enumerate(image.size)), output.dtype
    assert kind is not None
    source = image.offset + sum(i * s for i, s in zip(axes, image.stride, strict=True))
    target = sum(i * s for i, s in zip(axes, stride, strict=True))
    value = load(image.buffer, source, kind)
    first = Pointwise(f"{call.name}_lay_out", axes, (), line.name, target, value, origins=call.origins)
    node = _convolution(call, line.view(), taps, bias, numbers, output, True)
    return DepthwiseLoops((first, node), (line,))


def _at(values: tuple[IndexLike, ...], order: Sequence[int]) -> tuple[IndexLike, ...]:
    return tuple(values[d] for d in order)


def _convolution(
    call: TemplateCall,
    image: View,
    weight: View,
    bias: object,
    numbers: Sequence[Sequence[int]],
    output: Buffer,
    own: bool,
) -> Pointwise:
    """The convolution with a weight of [window, channels of a group, channels]; `own`: what lies beyond the
    border comes from the convolution itself.
    """
    window, width = [n for n in weight.size[:-2] if isinstance(n, int)], weight.size[-2]
    steps, before, gaps = (for_each_axis(values, len(window)) for values in numbers)
    axes = tuple(axis(f"i{d}", n) for d, n in enumerate(output.size))
    batch, channel, *positions = axes
    *per, per_channel = weight.stride
    kind = output.dtype
    assert isinstance(width, int) and kind is not None
    # a group has as many results as channels
    first_of_group = channel if width == 1 else channel // width * width
    total: Expr | None = None
    for *taps, member in product(*(range(n) for n in window), range(width)):
        read = (first_of_group + member) * image.stride[1]
        at: IndexLike = image.offset + batch * image.stride[0] + read
        inside: Expr | None = None
        for d, (tap, position) in enumerate(zip(taps, positions, strict=True)):
            shift = tap * gaps[d] - before[d]
            coordinate = position * steps[d] + shift
            at = at + coordinate * image.stride[2 + d]
            last = (output.size[2 + d] - 1) * steps[d] + shift
            for test in _tests(coordinate, shift, last, image.size[2 + d]):
                inside = test if inside is None else apply("bitwise_and", inside, test)
        # beyond a border of the convolution's own, the weight counts as zero, too: it may be infinite
        tap_at = sum(t * s for t, s in zip((*taps, member), per, strict=True))
        index_of_tap = weight.offset + channel * per_channel + tap_at
        held = _loaded(weight.buffer, index_of_tap, kind, inside if own else None)
        term = apply("mul", _loaded(image.buffer, at, kind, inside), held)
        total = term if total is None else apply("add", total, term)
    assert total is not None
    if isinstance(bias, View):
        total = apply("add", total, _loaded(bias.buffer, bias.offset + channel * bias.stride[0], kind))
    where: IndexLike = 0
    for position, stride in zip(axes, output.stride, strict=True):
        where = where + position * stride
    name = f"{call.name}_depthwise"
    # what follows may read the sum as it is before it is rounded
    return Pointwise(name, axes, (), output.name, where, total, origins=call.origins)


def _loaded(buffer: str, index: IndexLike, kind: DType, mask: Expr | None = None) -> Expr:
    return cast(load(buffer, index, kind, mask=mask), DType.f32)


def _tests(coordinate: IndexLike, first: int, last: IndexLike, extent: IndexLike) -> list[Expr]:
    """Whether a coordinate is within the image, where its bounds do not decide it."""
    tests = []
    value = index_value(coordinate)
    if first < 0:
        tests.append(apply("ge", value, const(0, DType.i64)))
    if not (isinstance(last, int) and isinstance(extent, int) and last < extent):
        tests.append(apply("lt", value, index_value(extent)))
    return tests


def _laid_out(
    call: TemplateCall, weight: View, window: Sequence[int], output: Buffer
) -> tuple[Buffer, Pointwise]:
    """The weight with its channels last."""
    size = (*window, weight.size[1], weight.size[0])
    stride = contiguous_strides(size)
    kind = output.dtype
    assert kind is not None
    buffer = replace(output, name=f"{call.name}_taps", size=size, stride=stride, kind="temp")
    axes = tuple(axis(f"i{d}", n) for d, n in enumerate(size))
    source: IndexLike = weight.offset + axes[-1] * weight.stride[0] + axes[-2] * weight.stride[1]
    target: IndexLike = 0
    for d, a in enumerate(axes):
        target = target + a * stride[d]
        if d < len(window):
            source = source + a * weight.stride[2 + d]
    value = load(weight.buffer, source, kind)
    node = Pointwise(f"{call.name}_lay_out", axes, (), buffer.name, target, value, origins=call.origins)
    return buffer, node
