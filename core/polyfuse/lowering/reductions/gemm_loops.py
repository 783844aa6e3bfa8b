"""Matmuls and convolutions as loops: what a library call computes, said in the representation, so
that a backend can generate it and the scheduler can fuse it with its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyfuse.ir.expr import Expr, apply, bitcast, cast, const, index_value, load, walk
from polyfuse.ir.nodes import Buffer, LoopNode, Opaque, Pointwise, Reduction, TemplateCall, View
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import accumulates
from polyfuse.runtime.devices.registry import device_of
from polyfuse.symbolic import Index, IndexLike, axis, axis_name, axis_size, free_axes


class Unavailable(Exception):
    """An operation has no loop form; the text says why."""


@dataclass(frozen=True)
class GemmLoops:
    """What is done instead of a call.

    Attributes:
        gemm: the sum of products, into a buffer of its own.
        finish: what is done with each sum; it writes the call's result.
        accumulator: that buffer.
    """

    gemm: Reduction
    finish: Pointwise
    accumulator: Buffer

    @property
    def nodes(self) -> tuple[LoopNode, ...]:
        """Both, in order."""
        return self.gemm, self.finish


def gemm_loops(call: TemplateCall, buffers: Mapping[str, Buffer]) -> GemmLoops:
    """The loops that compute what `call` does.

    Raises:
        Unavailable: there are none.
    """
    build = _FORMS.get(call.op)
    if build is None:
        raise Unavailable(f"{call.op} is no matmul")
    if len(call.outputs) != 1 or not call.outputs[0]:
        raise Unavailable("it has several results")
    return build(_Form(call, buffers, buffers[call.outputs[0]]))


class _Form:
    """A loop form under construction."""

    def __init__(self, call: TemplateCall, buffers: Mapping[str, Buffer], output: Buffer) -> None:
        if output.dtype is None or any(n == 0 for n in output.size):
            raise Unavailable("its result is empty, or of a type that loops do not compute")
        self.call = call
        self.buffers = buffers
        self.output = output
        self.dtype: DType = output.dtype
        self.axes: tuple[IndexLike, ...] = tuple(axis(f"i{d}", n) for d, n in enumerate(output.size))
        self.named = dict(call.kwargs)
        self._loops = self.axes

    def split(self, position: int, parts: int) -> tuple[Index, Index]:
        """Run through an axis of the result in so many parts: the axis of the parts, and that in each."""
        name, each = f"i{position}", self.output.size[position] // parts
        outer, inner = axis(f"{name}_part", parts), axis(name, each)
        self.axes = (*self.axes[:position], outer * each + inner, *self.axes[position + 1 :])
        self._loops = (*self._loops[:position], outer, inner, *self._loops[position + 1 :])
        return outer, inner

    @property
    def loops(self) -> tuple[Index, ...]:
        """The axes that loops run along."""
        return tuple(a for a in self._loops if isinstance(a, Index))

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, given by position or by name."""
        if position < len(self.call.args):
            return self.call.args[position]
        return self.named.get(name, default)

    def element(self, view: Any, index: Sequence[IndexLike], mask: Expr | None = None) -> Expr:
        """The element of a tensor at an index, in the tensor's own type; zero where `mask` is false."""
        if not isinstance(view, View):
            raise Unavailable("an operand is no tensor")
        held = self.buffers[view.buffer].dtype
        if held is None:
            raise Unavailable("an operand is of a type that loops do not compute")
        offset = view.offset
        for position, step in zip(index, view.stride, strict=True):
            offset = offset + position * step
        value = load(view.buffer, offset, held, mask=mask)
        return value if view.dtype is None or view.dtype is held else bitcast(value, view.dtype)

    def broadcast(self, view: Any) -> Expr:
        """The element of a tensor that goes with the result's element, broadcast as torch does."""
        if not isinstance(view, View):
            raise Unavailable("an operand is no tensor")
        axes = self.axes[len(self.axes) - len(view.size) :]
        index = [0 if n == 1 else a for n, a in zip(view.size, axes, strict=True)]
        return self.element(view, index)

    def number(self, value: Any, dtype: DType) -> Expr:
        """A factor given as a Python number."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Unavailable("a factor is known only at run time")
        if not dtype.is_float and not float(value).is_integer():
            raise Unavailable("integers are scaled by a fraction")
        return const(float(value) if dtype.is_float else int(value), dtype)

    def sum_of_products(
        self, left: Expr, right: Expr, depth: tuple[Index, ...], rounded: bool, fast: bool = False
    ) -> tuple[Reduction, Buffer, Expr]:
        """The GEMM, its buffer, and how to read it. `rounded`: f32 may be rounded before it is multiplied;
        `fast`: sums of 8-bit floats may be accumulated with fewer bits.
        """
        if any(axis_size(a) == 0 for a in depth):
            raise Unavailable("it adds up nothing")
        if left.dtype is not right.dtype and not (left.dtype.itemsize == right.dtype.itemsize == 1):
            raise Unavailable(f"its operands are of different types, {left.dtype} and {right.dtype}")
        if DType.bool in (left.dtype, right.dtype) or self.dtype is DType.bool:
            raise Unavailable("truth values are not multiplied")
        steps = {axis_name(a) for a in depth if axis_size(a) != 1}
        if steps and any(steps.isdisjoint(_varies_along(side)) for side in (left, right)):
            raise Unavailable("an operand is expanded along all that is added up")
        dtype = accumulates(left.dtype)
        name = f"{self.call.name}_sum"
        strides: list[IndexLike] = []
        step: IndexLike = 1
        for n in reversed(self.output.size):
            strides.insert(0, step)
            step = step * n
        buffer = Buffer(
            name,
            dtype,
            self.output.device,
            self.output.size,
            tuple(strides),
            str(dtype.torch)[len("torch.") :],
        )
        offset = _offset(self.axes, strides)
        kind = "dot_tf32" if rounded and left.dtype is DType.f32 else "dot"
        if fast and left.dtype.is_eight_bit_float:
            kind = "dot_fast"
        node = Reduction(
            f"{self.call.name}_dot",
            self.loops,
            depth,
            (name,),
            offset,
            kind,
            (left, right),
            origins=self.call.origins,
        )
        return node, buffer, load(name, offset, dtype)

    def finish(self, gemm: Reduction, accumulator: Buffer, value: Expr) -> GemmLoops:
        """The loop form that stores `value`. What follows may read the sum as it is before it is rounded."""
        offset = _offset(self.axes, self.output.stride)
        node = Pointwise(
            f"{self.call.name}_finish",
            self.loops,
            (),
            self.output.name,
            offset,
            value if value.dtype is self.dtype.compute else cast(value, self.dtype),
            origins=self.call.origins,
        )
        return GemmLoops(gemm, node, accumulator)


def _varies_along(value: Expr) -> set[str]:
    """The names of the axes that a value, or where it is read, depends on."""
    indices = [expr.index for expr in walk(value) if expr.op in ("load", "index")]
    return {name for index in indices for name in free_axes(index)}


def _offset(axes: Sequence[IndexLike], strides: Sequence[IndexLike]) -> IndexLike:
    offset: IndexLike = 0
    for position, step in zip(axes, strides, strict=True):
        offset = offset + position * step
    return offset


def _matmul(form: _Form, left: Any, right: Any, fast: bool = False) -> tuple[Reduction, Buffer, Expr]:
    """The matmul of two matrices, or of two batches of them. `fast`: accumulation may use fewer bits."""
    if not isinstance(left, View) or not isinstance(right, View):
        raise Unavailable("an operand is no tensor")
    depth = axis("k0", left.size[-1])
    *batch, row, column = form.axes
    rounded = device_of(form.output.device).rounds("matmuls")
    return form.sum_of_products(
        form.element(left, (*batch, row, depth)),
        form.element(right, (*batch, depth, column)),
        (depth,),
        rounded,
        fast,
    )


def _mm(form: _Form) -> GemmLoops:
    gemm, accumulator, value = _matmul(form, form.argument(0, "self"), form.argument(1, "mat2"))
    return form.finish(gemm, accumulator, value)


def _addmm(form: _Form) -> GemmLoops:
    gemm, accumulator, value = _matmul(form, form.argument(1, "mat1"), form.argument(2, "mat2"))
    alpha, beta = form.argument(3, "alpha", 1), form.argument(4, "beta", 1)
    if "alpha" in form.named or "beta" in form.named:
        alpha, beta = form.named.get("alpha", 1), form.named.get("beta", 1)
    elif len(form.call.args) > 3:
        raise Unavailable("its factors are given by position")
    if alpha != 1:
        value = apply("mul", value, form.number(alpha, value.dtype))
    # with a factor of zero, what is added counts for nothing, not even where it is NaN
    if beta != 0:
        added = cast(form.broadcast(form.argument(0, "self")), value.dtype)
        if beta != 1:
            added = apply("mul", added, form.number(beta, value.dtype))
        value = apply("add", value, added)
    return form.finish(gemm, accumulator, value)


def _scaled_mm(form: _Form) -> GemmLoops:
    fast = form.argument(7, "use_fast_accum", False) is True
    gemm, accumulator, value = _matmul(form, form.argument(0, "self"), form.argument(1, "mat2"), fast)
    rows, columns = form.output.size
    for position, name, allowed in ((2, "scale_a", (rows, 1)), (3, "scale_b", (1, columns))):
        scale = form.argument(position, name)
        one = isinstance(scale, View) and all(n == 1 for n in scale.size) and len(scale.size) <= 2
        if not isinstance(scale, View) or not (one or scale.size == allowed):
            raise Unavailable("it has a scale for each block")
        factor = form.broadcast(scale)
        if factor.dtype is not DType.f32:
            raise Unavailable(f"its scales are {factor.dtype}")
        value = apply("mul", value, factor)
    if form.argument(5, "scale_result") is not None:
        raise Unavailable("its result is scaled")
    bias = form.argument(4, "bias")
    if bias is not None:
        value = apply("add", value, cast(form.broadcast(bias), value.dtype))
    return form.finish(gemm, accumulator, value)


def _convolution(form: _Form) -> GemmLoops:
    image, weight, bias = (form.argument(i, n) for i, n in enumerate(("input", "weight", "bias")))
    strides, padding, dilation = (
        form.argument(i, n) for i, n in ((3, "stride"), (4, "padding"), (5, "dilation"))
    )
    transposed, groups = form.argument(6, "transposed"), form.argument(8, "groups")
    if transposed or not isinstance(image, View) or not isinstance(weight, View):
        raise Unavailable("it is transposed")
    spatial = len(weight.size) - 2
    if len(image.size) != spatial + 2 or not isinstance(groups, int):
        raise Unavailable("its input has no batch axis")
    numbers = [for_each_axis(value, spatial) for value in (strides, padding, dilation)]
    inside = axis("k0", weight.size[1])
    taps = tuple(axis(f"k{d + 1}", n) for d, n in enumerate(weight.size[2:]))
    source: IndexLike = inside
    if groups != 1:
        group, _ = form.split(1, groups)
        source = group * weight.size[1] + inside
    batch, channel, *positions = form.axes
    index: list[IndexLike] = [batch, source]
    mask: Expr | None = None
    sides = zip(positions, taps, image.size[2:], *numbers, strict=True)
    for position, tap, extent, step, before, gap in sides:
        at = position * step + tap * gap - before
        index.append(at)
        if before == 0:
            continue
        value = index_value(at)
        tests = (
            apply("ge", value, const(0, DType.i64)),
            apply("lt", value, index_value(extent)),
        )
        for test in tests:
            mask = test if mask is None else apply("bitwise_and", mask, test)
    rounded = device_of(form.output.device).rounds("convolutions")
    gemm, accumulator, total = form.sum_of_products(
        form.element(image, index, mask),
        form.element(weight, (channel, inside, *taps)),
        (inside, *taps),
        rounded,
    )
    if bias is not None:
        if not isinstance(bias, View):
            raise Unavailable("its bias is no tensor")
        total = apply("add", total, cast(form.element(bias, (channel,)), total.dtype))
    return form.finish(gemm, accumulator, total)


def for_each_axis(value: Any, count: int) -> list[int]:
    """A number for each axis; one number stands for all."""
    numbers = [value] if isinstance(value, int) else list(value)
    if len(numbers) == 1:
        numbers *= count
    if len(numbers) != count or any(isinstance(n, Opaque) or not isinstance(n, int) for n in numbers):
        raise Unavailable("its strides or paddings are known only at run time")
    return numbers


_FORMS: dict[str, Callable[[_Form], GemmLoops]] = {
    "aten.mm.out": _mm,
    "aten.bmm.out": _mm,
    "aten._int_mm.out": _mm,
    "aten.addmm.out": _addmm,
    "aten.baddbmm.out": _addmm,
    "aten._scaled_mm.default": _scaled_mm,
    "aten.convolution.default": _convolution,
}
