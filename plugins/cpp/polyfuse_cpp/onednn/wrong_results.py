"""Convolutions of bf16 that oneDNN computes wrongly on CPUs with matrix registers: in single precision, or
with rows and columns exchanged.

Found by comparing random layers with double precision, by the library's implementation (torch 2.11 and
2.13):

* Results one number wide, of windows that are wider, in several lines: some lines are what the memory held
  before: a window of 3x3 with a stride of 2 gives such lines for an image of 12x2, and none for 8x2 or 12x3.
  With rows and columns exchanged, results are right, which images of inference and forwards have.
* Up to 32 channels, and windows 4, 8, 12 ... wide that fill whole registers with them: other numbers. Fewer
  than 16 in odd number are right (158 random layers): images of three colours cut into patches, say.
* Volumes whose windows have layers that meet the margin alone: numbers of the memory.
* The gradient of a volume, and a transposed convolution: layers behind the last window are not written.
* The gradient of a weight: numbers of its columns that meet the margin alone are not written. The rest is
  right, so these are made zero.

The gradient of an image is a transposed convolution, and that of a transposed convolution's is a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch.fx import Node

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, apply, cast, const, index_value
from polyfuse.ir.types import DType
from polyfuse.plugin import Lowering, LoweringContext, Rewrite, RewriteContext, TensorValue
from polyfuse_cpp.isa import choose_isa, has_matrix_registers

_RANK: Final = 4


def turned(ctx: RewriteContext, node: Node) -> Node | None:
    """The convolution of the image with its rows as columns, if the result has one column of several rows."""
    image, weight, bias, *numbers, transposed, margin, groups = node.args
    x, w, result = ctx.tensor(image), ctx.tensor(weight), ctx.tensor(node)
    if x is None or w is None or result is None or x.dim() != _RANK or transposed:
        return None
    if x.device.type != "cpu" or not x.dtype == w.dtype == torch.bfloat16:
        return None
    rows, columns = result.shape[-2:]
    if not isinstance(columns, int) or columns != 1 or w.shape[-1] == 1:
        return None
    if isinstance(rows, int) and rows == 1:
        return None
    if not has_matrix_registers(choose_isa("")):  # the library's choice, whatever the option says
        return None
    order = [0, 1, 3, 2]
    operands = (ctx.call("aten.permute.default", (operand, order)) for operand in (image, weight))
    steps = ([*n[:-2], n[-1], n[-2]] for n in map(list, numbers))
    found = ctx.call("aten.convolution.default", (*operands, bias, *steps, transposed, margin, groups))
    found = ctx.call("aten.permute.default", (found, order))
    if found.meta["val"].stride() == result.stride():
        return found
    dense = torch.contiguous_format if result.is_contiguous() else torch.channels_last
    if not result.is_contiguous(memory_format=dense):
        return None
    copied = ctx.call("aten.clone.default", (found,), {"memory_format": dense})
    return copied if copied.meta["val"].stride() == result.stride() else None


REWRITES: Final = (
    Rewrite("single-windows", ("aten.convolution.default",), turned, ("inference", "forward")),
)
"""What the plugin's hook offers."""


_VOLUME: Final = 3
_REGISTER: Final = 64
"""Numbers of bf16 that the library's kernels for few channels take at once, at least."""


class _Traced(Protocol):
    args: tuple[Any, ...]
    meta: dict[str, Any]


@dataclass(frozen=True)
class _Windows:
    """A convolution: of `image` numbers along each axis to `result`, by windows of `sizes`. Sizes that vary
    are taken for large ones.

    Attributes:
        channels: of one group of the image.
    """

    image: tuple[Any, ...]
    result: tuple[Any, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    margins: tuple[int, ...]
    gaps: tuple[int, ...]
    channels: int

    def is_wrong(self) -> bool:
        """Whether the library computes the result wrongly."""
        *lines, width = (n if isinstance(n, int) else 2 for n in self.result)
        single = self.sizes[-1] > 1 and width == 1 and any(n > 1 for n in lines)
        return single or self._is_packed() or self._has_empty_layers()

    def _is_packed(self) -> bool:
        """Whether the library puts several numbers of a line beside each other, and mixes them up."""
        width, together = self.sizes[-1], self.channels * self.sizes[-1]
        if width % 4 or together < _REGISTER or together % 32:
            return False
        if self.channels < 16:
            return self.channels % 2 == 0
        return self.channels < 32 and self.steps[-1] % 4 == 0

    def _has_empty_layers(self) -> bool:
        return len(self.sizes) == _VOLUME and self.channels < 8 and not all(self._met(0))

    def is_image_unwritten(self) -> bool:
        """Whether the library leaves parts of the image's gradient unwritten, as it may where sizes vary."""
        if len(self.sizes) != _VOLUME or self.steps[0] == 1:
            return False
        if not isinstance(self.image[0], int) or not isinstance(self.result[0], int):
            return True
        reached = (self.result[0] - 1) * self.steps[0] + (self.sizes[0] - 1) * self.gaps[0] - self.margins[0]
        return self.image[0] - 1 > reached

    def met_columns(self) -> tuple[bool, ...]:
        """Which columns of the window meet the image anywhere."""
        return self._met(-1)

    def _met(self, axis: int) -> tuple[bool, ...]:
        image, result = self.image[axis], self.result[axis]
        if not isinstance(image, int) or not isinstance(result, int):
            return (True,) * self.sizes[axis]
        first = [tap * self.gaps[axis] - self.margins[axis] for tap in range(self.sizes[axis])]
        reads = range(0, result * self.steps[axis], self.steps[axis])
        return tuple(any(0 <= start + read < image for read in reads) for start in first)


def convolution(ctx: LoweringContext, node: _Traced, *values: Any) -> TensorValue:
    """The call in single precision, rounded; arguments as `aten.convolution` has them.

    Raises:
        UnsupportedError: the library is right.
    """
    image, weight, bias, *numbers = node.args
    fakes = [given.meta["val"] for given in (image, weight)]
    result = node.meta["val"]
    windows = _windows(fakes[0], fakes[1], result, numbers)
    transposed = numbers[3]
    if not (windows.is_image_unwritten() if transposed else windows.is_wrong()):
        raise UnsupportedError("the library computes this convolution right")
    operands = [_widened(ctx, f, v) for f, v in zip(fakes, values[:2], strict=True)]
    if bias is not None:
        operands.append(_widened(ctx, bias.meta["val"], values[2]))
    wide = _evaluated("convolution", *(f.float() for f in fakes), None, *numbers)
    found = ctx.call(
        node,
        "aten.convolution.default",
        (*operands[:2], operands[2] if bias is not None else None, *numbers),
        offered=True,
        results=wide,
    )
    return ctx.lazy(result, found.at(ctx.axes(found)))


def gradients(ctx: LoweringContext, node: _Traced, *values: Any) -> tuple[TensorValue | None, ...]:
    """The gradients, that of the image in single precision where the library's is wrong, and that of the
    weight zero where it meets the margin alone; arguments as `aten.convolution_backward` has them.

    Raises:
        UnsupportedError: the library is right.
    """
    fakes = [given.meta["val"] for given in node.args[:3]]
    gradient, image, weight = fakes
    biases, *numbers, wanted = node.args[3:]
    windows = _windows(image, weight, gradient, numbers)
    wrong = windows.is_wrong() if numbers[3] else windows.is_image_unwritten()
    met = windows.met_columns()
    if not ((wanted[0] and wrong) or (wanted[1] and not all(met))):
        raise UnsupportedError("the library computes these gradients right")
    results: list[TensorValue | None] = [None] * 3
    name, first = "aten.convolution_backward.default", bool(wanted[0])
    if first and wrong:
        operands = [_widened(ctx, f, v) for f, v in zip(fakes, values[:3], strict=True)]
        mask = [True, False, False]
        wide = _evaluated("convolution_backward", *(f.float() for f in fakes), None, *numbers, mask)
        found = ctx.call(node, name, (*operands, None, *numbers, mask), offered=True, results=wide)[0]
        results[0] = ctx.lazy(node.meta["val"][0], found.at(ctx.axes(found)))
        first = False
    if first or any(wanted[1:]):
        mask = [first, *wanted[1:]]
        made = [f if m else None for f, m in zip(node.meta["val"], mask, strict=True)]
        args = (*values[:3], biases, *numbers, mask)
        others = ctx.call(node, name, args, offered=True, results=made)
        results = [own if own is not None else other for own, other in zip(results, others, strict=True)]
    whole = results[1]
    if whole is not None and not all(met):
        axes = ctx.axes(whole)
        element = whole.at(axes)
        column = axes[-1]
        zero = const(0.0, element.dtype)
        results[1] = ctx.lazy(node.meta["val"][1], apply("where", _any_of(column, met), element, zero))
    return tuple(results)


def _any_of(column: Any, met: Sequence[bool]) -> Expr:
    """Whether a column is one of those that meet the image."""
    number = index_value(column)
    found = const(False, DType.bool)
    for tap, meets in enumerate(met):
        if meets:
            found = apply("bitwise_or", found, apply("eq", number, const(tap, DType.i64)))
    return found


def _windows(image: Any, weight: Any, result: Any, numbers: Sequence[Any]) -> _Windows:
    """Of a convolution, or of the one that a transposed convolution is the gradient of.

    Raises:
        UnsupportedError: not of bf16 on a CPU with matrix registers.
    """
    if image.dtype is not torch.bfloat16 or weight.dtype is not torch.bfloat16:
        raise UnsupportedError("the library is right but for bf16")
    # the library's choice, whatever the option says
    if not has_matrix_registers(choose_isa("")):
        raise UnsupportedError("the library is right without matrix registers")
    steps, margins, gaps, transposed, _, _ = numbers
    rank = image.dim() - 2
    sizes = tuple(weight.shape[2:])
    if rank < 1 or not all(isinstance(n, int) for n in sizes):
        raise UnsupportedError("a window of unknown size is the library's")
    read, made = (result, image) if transposed else (image, result)
    every = [tuple(values) * (rank if len(values) == 1 else 1) for values in (steps, margins, gaps)]
    sides = tuple(read.shape[2:]), tuple(made.shape[2:])
    return _Windows(*sides, sizes, every[0], every[1], every[2], channels=int(weight.shape[1]))


def _widened(ctx: LoweringContext, fake: torch.Tensor, value: TensorValue) -> TensorValue:
    """An operand in single precision, laid out as it is."""
    return ctx.lazy(fake.float(), cast(value.at(ctx.axes(value)), DType.f32))


def _evaluated(name: str, *args: Any) -> Any:
    """What a call gives for traced values."""
    return getattr(torch.ops.aten, name).default(*args)


LOWERINGS: Final = {
    "aten.convolution.default": Lowering(convolution, library=True),
    "aten.convolution_backward.default": Lowering(gradients, library=True),
}
"""What the plugin's hook offers."""
