"""`TensorValue`: a tensor of the traced graph, either stored in a buffer or still an expression."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, bitcast, load, reindex
from polyfuse.ir.nodes import Origin, View
from polyfuse.ir.types import DType
from polyfuse.rewrite import cast
from polyfuse.symbolic import IndexLike, axis


@lru_cache(maxsize=4096)
def axes_of(size: tuple[IndexLike, ...]) -> tuple[IndexLike, ...]:
    """The index variables of a lazy body: ``i0``, ``i1``, ... by dimension, and 0 where the size is one."""
    return tuple(0 if n == 1 else axis(f"i{d}", n) for d, n in enumerate(size))


class TensorValue:
    """A box around one tensor value; realising it changes what is inside, for everyone who holds it.

    Attributes:
        dtype: IR type; None for values that only eager operators touch.
        torch_dtype, device: as traced; the device as text.
        size: as traced.
        stride, offset: the layout of the traced tensor in its storage, which views and eager operators rely
        on. view: where it is stored; None while lazy. body: while lazy: the element at ``i0, i1, ...`` in the
        type that `dtype` is computed in. raw: type of the buffer's elements where `view` reinterprets their
        bits. origins: what a lazy body was made from.
    """

    __slots__ = (
        "body",
        "device",
        "dtype",
        "offset",
        "origins",
        "raw",
        "size",
        "stride",
        "torch_dtype",
        "view",
    )

    def __init__(
        self,
        dtype: DType | None,
        torch_dtype: torch.dtype,
        device: str,
        size: tuple[IndexLike, ...],
        stride: tuple[IndexLike, ...],
        offset: IndexLike = 0,
        view: View | None = None,
        body: Expr | None = None,
        origins: tuple[Origin, ...] = (),
    ) -> None:
        self.dtype, self.torch_dtype, self.device = dtype, torch_dtype, device
        self.size, self.stride, self.offset = size, stride, offset
        self.view, self.body, self.origins = view, body, origins
        self.raw: DType | None = None

    def blank(self) -> TensorValue:
        """A value with the same metadata and no content yet."""
        return TensorValue(
            self.dtype, self.torch_dtype, self.device, self.size, self.stride, offset=self.offset
        )

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.size)

    @property
    def strides(self) -> tuple[IndexLike, ...]:
        """One stride a dimension; zeros where the tensor has none, as a sparse one."""
        return self.stride if len(self.stride) == self.rank else (0,) * self.rank

    @property
    def faithful(self) -> bool:
        """Whether it is stored with the traced strides, so that torch's metadata of its views holds."""
        view = self.view
        if view is None:
            return False
        if len(self.stride) != self.rank:  # a sparse tensor: it has no strides that could differ
            return True
        return view.stride is self.stride or all(
            n == 1 or have == want for n, have, want in zip(self.size, view.stride, self.stride, strict=True)
        )

    @property
    def kernel_type(self) -> DType:
        """The IR type; a value that only eager operators touch is refused."""
        if self.dtype is None:
            raise UnsupportedError(f"{self.torch_dtype} is not a type that kernels compute in")
        return self.dtype

    def at(self, indices: Sequence[IndexLike]) -> Expr:
        """The element at `indices`, in the type that `dtype` is computed in."""
        kind = self.kernel_type
        if self.view is not None:
            index = self.view.offset
            for position, stride in zip(indices, self.view.stride, strict=True):
                if position != 0:
                    index = index + position * stride
            element = load(self.view.buffer, index, self.raw or kind)
            if self.raw is not None:
                element = bitcast(element, kind)
            return cast(element, kind.compute)
        assert self.body is not None
        own = axes_of(self.size)
        changes = {
            f"i{d}": new for d, (old, new) in enumerate(zip(own, indices, strict=True)) if old is not new
        }
        return reindex(self.body, changes)

    def expand_to(self, axes: Sequence[IndexLike]) -> Expr:
        """The element that broadcasting puts at `axes` of a tensor of equal or higher rank."""
        lead = len(axes) - len(self.size)
        return self.at([0 if n == 1 else axes[lead + d] for d, n in enumerate(self.size)])

    def set_view(self, view: View, raw: DType | None = None) -> None:
        """From now on the value is stored at `view`."""
        self.view, self.body, self.raw, self.origins = view, None, raw, ()

    def __repr__(self) -> str:
        state = f"view={self.view}" if self.view is not None else f"body={self.body}"
        return f"TensorValue({self.dtype}, {self.size}, {state})"


Argument = Any
"""What a lowering gets: `TensorValue`, an index, a Python value, or tuples and lists of these."""
