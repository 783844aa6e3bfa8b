"""Linear layers and convolutions of quantised numbers: operators that a graph calls, and what runs them.

An input of bytes times a weight of signed bytes is added up in integers by oneDNN, whose operators come with
torch, and is scaled, and quantised again where that follows, in the same go. A weight is packed once for all
calls, and again when it has changed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol

import torch
from torch import Tensor

SPACE: Final = "polyfuse_quantized"
LINEAR: Final = f"{SPACE}.linear.default"
CONVOLUTION: Final = f"{SPACE}.convolution.default"

_OPERANDS: Final = (
    "Tensor x, float x_scale, int x_zero, Tensor weight, Tensor scales, Tensor zeros, Tensor? bias"
)
_ADDEND: Final = "Tensor? other, float other_scale, int other_zero"
_RESULT: Final = "float scale, int zero, ScalarType dtype, str activation"
_WINDOW: Final = "int[] stride, int[] padding, int[] dilation, int groups, bool last"
_LIBRARY: Final = torch.library.Library(SPACE, "DEF")
_LIBRARY.define(f"linear({_OPERANDS}, {_RESULT}) -> Tensor")
_LIBRARY.define(f"convolution({_OPERANDS}, {_ADDEND}, {_WINDOW}, {_RESULT}) -> Tensor")


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


class Packing(Protocol):
    """Lays a weight out."""

    def __call__(self, weight: Tensor, scales: Tensor, /) -> Tensor: ...


@dataclass
class PackedWeights:
    """The packed form of weights, as long as they live and stay as they are.

    A weight whose numbers are not symmetric, which the library does not know, has none.
    """

    known: dict[int, tuple[weakref.ref[Tensor], tuple[Any, ...], Tensor | None]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, weight: Tensor, scales: Tensor, zeros: Tensor, pack: Packing) -> Tensor | None:
        """The packed form, made if there is none yet."""
        key, now = id(weight), tuple(map(_stamp, (weight, scales, zeros)))
        found = self.known.get(key)
        if found is not None and found[0]() is weight and found[1] == now:
            return found[2]
        with self.lock, torch.inference_mode(False), torch.no_grad():
            symmetric = not bool(zeros.any())
            packed = pack(weight.detach().contiguous(), scales) if symmetric else None
            gone = weakref.ref(weight, lambda _: self.known.pop(key, None))
            self.known[key] = (gone, now, packed)
        return packed


def _stamp(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor is and how often it was written to, as far as it says so."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


@dataclass
class _Product:
    """What a program calls."""

    x: Quantisation
    result: Quantisation
    activation: str

    def __post_init__(self) -> None:
        self._weights = PackedWeights()

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, item.name) for item in fields(self))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _after(self) -> tuple[Any, ...]:
        """The last arguments of the library's operators."""
        return *self._stored(), (), ""

    def _stored(self) -> tuple[float, int, torch.dtype, str]:
        """The last arguments of the operators that a graph calls."""
        return self.result.scale, self.result.zero, self.result.dtype, self.activation


@dataclass
class Linear(_Product):
    """A linear layer. Sizes: (rows, depth) and (columns, depth) to (rows, columns)."""

    def __call__(
        self, x: Tensor, weight: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None
    ) -> Tensor:
        """The result, contiguous."""
        packed = self._weights.of(weight, scales, zeros, self._packed)
        if packed is None or x.numel() == 0:
            return _linear(x, self.x.scale, self.x.zero, weight, scales, zeros, bias, *self._stored())
        call = torch.ops.onednn.qlinear_pointwise.default
        found: Tensor = call(
            x.contiguous(), self.x.scale, self.x.zero, packed, scales, zeros, bias, *self._after()
        )
        return found

    def _packed(self, weight: Tensor, scales: Tensor, /) -> Tensor:
        packed: Tensor = torch.ops.onednn.qlinear_prepack.default(weight, None)
        return packed


@dataclass
class Convolution(_Product):
    """A convolution of images with two dimensions.

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
        weight: Tensor,
        scales: Tensor,
        zeros: Tensor,
        bias: Tensor | None,
        other: Tensor | None = None,
    ) -> Tensor:
        """The result, in the layout that was asked for."""
        packed = self._weights.of(weight, scales, zeros, self._packed)
        if packed is None or x.numel() == 0:
            read = (x, self.x.scale, self.x.zero, weight, scales, zeros, bias)
            added = (None, 1.0, 0) if self.other is None else (other, self.other.scale, self.other.zero)
            given: tuple[Any, ...] = (*read, *added, *self.window, self.groups, self.last, *self._stored())
            return _convolution(*given)
        found = self._called(x, packed, scales, zeros, bias, other)
        return found.contiguous(memory_format=memory_order(self.last))

    def _called(
        self,
        x: Tensor,
        packed: Tensor,
        scales: Tensor,
        zeros: Tensor,
        bias: Tensor | None,
        other: Tensor | None,
    ) -> Tensor:
        operands, window = (x, self.x.scale, self.x.zero, packed, scales, zeros), (*self.window, self.groups)
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

    def _packed(self, weight: Tensor, scales: Tensor, /) -> Tensor:
        call = torch.ops.onednn.qconv_prepack.default
        given = (scales, self.x.scale, self.x.zero, *self.window, self.groups, None)
        packed: Tensor = call(weight, *given)
        return packed


def memory_order(last: bool) -> torch.memory_format:
    """The layout of an image with its channels last, or second."""
    return torch.channels_last if last else torch.contiguous_format


def dequantised(x: Tensor, how: Quantisation) -> Tensor:
    """As f32."""
    return (x.float() - how.zero) * how.scale


def dequantised_weight(weight: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """As f32, with a scale for each result."""
    shape = (-1, *(1,) * (weight.dim() - 1))
    return (weight.float() - zeros.float().reshape(shape)) * scales.float().reshape(shape)


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
    scales: Tensor,
    zeros: Tensor,
    bias: Tensor | None,
    scale: float,
    zero: int,
    dtype: torch.dtype,
    activation: str,
) -> Tensor:
    wide = dequantised(x, Quantisation(x_scale, x_zero, x.dtype)), dequantised_weight(weight, scales, zeros)
    exact = torch.nn.functional.linear(*wide, bias)
    return requantised(exact, Quantisation(scale, zero, dtype), activation)


def _convolution(
    x: Tensor,
    x_scale: float,
    x_zero: int,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor,
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
    wide = dequantised(x, Quantisation(x_scale, x_zero, x.dtype)), dequantised_weight(weight, scales, zeros)
    exact = torch.nn.functional.conv2d(*wide, bias, stride, padding, dilation, groups)
    if other is not None:
        exact = exact + dequantised(other, Quantisation(other_scale, other_zero, other.dtype))
    found = requantised(exact, Quantisation(scale, zero, dtype), activation)
    return found.contiguous(memory_format=memory_order(last))


_LIBRARY.impl("linear", _linear, "CompositeExplicitAutograd")
_LIBRARY.impl("convolution", _convolution, "CompositeExplicitAutograd")
