"""Linear layers and convolutions of quantised numbers: operators that a graph calls, and what runs them.

An input of bytes times a weight of signed bytes is added up in integers by oneDNN, whose operators come with
torch, and is scaled, and quantised again where that follows, in the same go. They read a packed weight, which
the core has made once for each parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

SPACE: Final = "polyfuse_quantized"
LINEAR: Final = f"{SPACE}.linear.default"
CONVOLUTION: Final = f"{SPACE}.convolution.default"
PACK_LINEAR: Final = "onednn.qlinear_prepack.default"
PACK_CONVOLUTION: Final = f"{SPACE}.pack_convolution.default"
ANY: Final = "aten.any.default"

_OPERANDS: Final = (
    "Tensor x, float x_scale, int x_zero,"
    " Tensor weight, Tensor? scales, float weight_scale, Tensor? zeros, Tensor? bias"
)
_ADDEND: Final = "Tensor? other, float other_scale, int other_zero"
_RESULT: Final = "float scale, int zero, ScalarType dtype, str activation"
_WINDOW: Final = "int[] stride, int[] padding, int[] dilation, int groups"
_LIBRARY: Final = torch.library.Library(SPACE, "DEF")
_LIBRARY.define(f"linear({_OPERANDS}, {_RESULT}) -> Tensor")
_LIBRARY.define(f"convolution({_OPERANDS}, {_ADDEND}, {_WINDOW}, bool last, {_RESULT}) -> Tensor")
_LIBRARY.define(
    f"pack_convolution(Tensor weight, float x_scale, int x_zero, bool by_channel, {_WINDOW}) -> Tensor"
)


def available() -> bool:
    """Whether this torch brings the library's operators, and this CPU adds up products of bytes exactly:
    instructions older than VNNI saturate at 16 bits.
    """
    fast = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    library = torch.backends.mkldnn
    enabled = library.is_available() and bool(getattr(library, "enabled", True))
    known = all(hasattr(torch.ops.onednn, name) for name in ("qlinear_pointwise", "qconv_pointwise"))
    return enabled and known and bool(fast())


@dataclass(frozen=True)
class Quantisation:
    """How numbers are stored: ``value / scale + zero``, rounded, in `dtype`; f32 as it is."""

    scale: float
    zero: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Weight:
    """A weight of signed bytes, and what the library makes of it.

    Attributes:
        numbers: as they are stored, a row for each result.
        packed: the same, as the library reads them.
        scales: of f32: one for each row, or one.
        zeros: integers, for each row; None: all are zero.
        skewed: whether any of them is not zero, which the library does not know; None: nobody has looked.
    """

    numbers: Tensor
    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    skewed: Tensor | None

    @property
    def is_symmetric(self) -> bool:
        """Whether all zero points are zero."""
        if self.zeros is None:
            return True
        return not bool(self.zeros.any() if self.skewed is None else self.skewed)

    def without_zeros(self) -> tuple[Tensor, Tensor, Tensor]:
        """The packed weight, scales, and zero points for them, as the library's operators take them."""
        return self.packed, self.scales, _zeros(self.scales.numel())


_ZEROS: Final[dict[int, Tensor]] = {}


def _zeros(count: int) -> Tensor:
    found = _ZEROS.get(count)
    if found is None:
        with torch.inference_mode(False):
            found = _ZEROS[count] = torch.zeros(count, dtype=torch.int64)
    return found


@dataclass(frozen=True)
class Linear:
    """A linear layer. Sizes: (rows, depth) and (columns, depth) to (rows, columns).

    Attributes:
        x, result: how they are stored.
        activation: `"relu"` or `"none"`.
        weight_scale: the scale of all of the weight, where no tensor has scales.
    """

    x: Quantisation
    result: Quantisation
    activation: str
    weight_scale: float = 1.0
    storable: ClassVar[bool] = True
    """Programs that call it can be stored: it has no state but its attributes."""

    def __call__(
        self,
        x: Tensor,
        numbers: Tensor,
        packed: Tensor,
        scales: Tensor | None,
        zeros: Tensor | None,
        skewed: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """The result, contiguous."""
        weight = Weight(numbers, packed, self._scales(scales), zeros, skewed)
        if x.numel() == 0 or not weight.is_symmetric:
            exact = torch.nn.functional.linear(*self._wide(x, weight), bias)
            return requantised(exact, self.result, self.activation)
        call = torch.ops.onednn.qlinear_pointwise.default
        read = (x.contiguous(), self.x.scale, self.x.zero, *weight.without_zeros(), bias)
        found: Tensor = call(*read, *self._after())
        return found

    def _scales(self, scales: Tensor | None) -> Tensor:
        return torch.tensor([self.weight_scale]) if scales is None else scales

    def _wide(self, x: Tensor, weight: Weight) -> tuple[Tensor, Tensor]:
        """Both operands as f32."""
        return dequantised(x, self.x), dequantised_weight(weight.numbers, weight.scales, weight.zeros)

    def _after(self) -> tuple[Any, ...]:
        """The last arguments of the library's operators."""
        return self.result.scale, self.result.zero, self.result.dtype, self.activation, (), ""


@dataclass(frozen=True, kw_only=True)
class Convolution(Linear):
    """A convolution of one to three dimensions.

    Attributes:
        window: stride, padding and dilation, each with a number for a dimension.
        groups: of channels.
        last: whether the result has its channels last; otherwise they are second.
        other: how what is added to the result is stored, in bytes as the result is; None: nothing is.
    """

    window: tuple[tuple[int, ...], ...]
    groups: int
    last: bool
    other: Quantisation | None = None

    def __call__(
        self,
        x: Tensor,
        numbers: Tensor,
        packed: Tensor,
        scales: Tensor | None,
        zeros: Tensor | None,
        skewed: Tensor | None,
        bias: Tensor | None,
        other: Tensor | None = None,
    ) -> Tensor:
        """The result, in the layout that was asked for."""
        numbers = _of_window(numbers, x.dim())
        weight = Weight(numbers, packed, self._scales(scales), zeros, skewed)
        if x.numel() == 0 or not weight.is_symmetric:
            exact = convolved(*self._wide(x, weight), bias, self.window, self.groups)
            if other is not None and self.other is not None:
                exact = exact + dequantised(other, self.other)
            found = requantised(exact, self.result, self.activation)
        else:
            found = self._called(x, weight, bias, other)
        return found.contiguous(memory_format=memory_order(found.dim(), self.last))

    def _called(self, x: Tensor, weight: Weight, bias: Tensor | None, other: Tensor | None) -> Tensor:
        operands = (x, self.x.scale, self.x.zero, *weight.without_zeros())
        window = (*self.window, self.groups)
        if other is None or self.other is None:
            plain = torch.ops.onednn.qconv_pointwise.default
            found: Tensor = plain(*operands, bias, *window, *self._after())
            return found
        call, result = torch.ops.onednn.qconv2d_pointwise.binary, self.result
        # it writes over what it adds
        room = other.clone(memory_format=torch.channels_last)
        stored = (result.scale, result.zero, result.dtype)
        added = (self.other.scale, self.other.zero, "sum", 1.0)
        found = call(*operands, room, bias, *window, *stored, *added, self.activation, (), "")
        return found


_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Layouts with the channels last, by the number of dimensions."""


def memory_order(dims: int, last: bool) -> torch.memory_format:
    """The layout of an image with its channels last, or second."""
    return _LAST.get(dims, torch.contiguous_format) if last else torch.contiguous_format


def _of_window(weight: Tensor, dims: int) -> Tensor:
    """A weight for images of so many dimensions; one of rows alone gets a height of one."""
    return weight if weight.dim() == dims else weight.unsqueeze(2)


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: Sequence[Sequence[int]],
    groups: int,
) -> Tensor:
    """A convolution of one to three dimensions, in the type of its operands. `window`: stride, padding and
    dilation.
    """
    stride, padding, dilation = window
    zeros = [0] * len(stride)
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, zeros, groups)


def dequantised(x: Tensor, how: Quantisation) -> Tensor:
    """As f32."""
    return (x.float() - how.zero) * how.scale


def dequantised_weight(weight: Tensor, scales: Tensor, zeros: Tensor | None) -> Tensor:
    """As f32, with a scale for each result, or one."""
    shape = (-1, *(1,) * (weight.dim() - 1))
    wide = weight.float() if zeros is None else weight.float() - zeros.float().reshape(shape)
    return wide * scales.float().reshape(shape)


def requantised(exact: Tensor, how: Quantisation, activation: str) -> Tensor:
    """An activation of f32, stored as `how` says."""
    if activation == "relu":
        exact = exact.relu()
    if how.dtype.is_floating_point:
        return exact.to(how.dtype)
    limits = torch.iinfo(how.dtype)
    return (exact / how.scale).round().add(how.zero).clamp(limits.min, limits.max).to(how.dtype)


def _linear(
    x: Tensor,
    x_scale: float,
    x_zero: int,
    weight: Tensor,
    scales: Tensor | None,
    weight_scale: float,
    zeros: Tensor | None,
    bias: Tensor | None,
    scale: float,
    zero: int,
    dtype: torch.dtype,
    activation: str,
) -> Tensor:
    if scales is None:
        scales = torch.full((1,), weight_scale, device=weight.device)
    wide = dequantised(x, Quantisation(x_scale, x_zero, x.dtype)), dequantised_weight(weight, scales, zeros)
    exact = torch.nn.functional.linear(*wide, bias)
    return requantised(exact, Quantisation(scale, zero, dtype), activation)


def _convolution(
    x: Tensor,
    x_scale: float,
    x_zero: int,
    weight: Tensor,
    scales: Tensor | None,
    weight_scale: float,
    zeros: Tensor | None,
    bias: Tensor | None,
    other: Tensor | None,
    other_scale: float,
    other_zero: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    last: bool,
    scale: float,
    zero: int,
    dtype: torch.dtype,
    activation: str,
) -> Tensor:
    if scales is None:
        scales = torch.full((1,), weight_scale, device=weight.device)
    wide = dequantised(x, Quantisation(x_scale, x_zero, x.dtype)), dequantised_weight(weight, scales, zeros)
    wide = wide[0], _of_window(wide[1], x.dim())
    exact = convolved(*wide, bias, (stride, padding, dilation), groups)
    if other is not None:
        exact = exact + dequantised(other, Quantisation(other_scale, other_zero, other.dtype))
    found = requantised(exact, Quantisation(scale, zero, dtype), activation)
    return found.contiguous(memory_format=memory_order(found.dim(), last))


def _pack_convolution(
    weight: Tensor,
    x_scale: float,
    x_zero: int,
    by_channel: bool,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    weight = _of_window(weight, len(stride) + 2)
    # of scales, it looks at their number
    scales = torch.ones(weight.shape[0] if by_channel else 1)
    call = torch.ops.onednn.qconv_prepack.default
    packed: Tensor = call(weight, scales, x_scale, x_zero, stride, padding, dilation, groups, None)
    return packed


_LIBRARY.impl("linear", _linear, "CompositeExplicitAutograd")
_LIBRARY.impl("convolution", _convolution, "CompositeExplicitAutograd")
_LIBRARY.impl("pack_convolution", _pack_convolution, "CompositeExplicitAutograd")
