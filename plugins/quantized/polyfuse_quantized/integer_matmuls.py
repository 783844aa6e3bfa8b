"""Linear layers of bytes without a packed weight: integers are multiplied and added up by torch, and what
scales the sums is part of the kernel that reads them.

With ``x = (a - p) * s`` and ``w = (b - q) * t``, where `q` and `t` may differ from column to column,
``sum(x * w)`` is ``(sum(a * b) - p * sum(b) - q * sum(a - p)) * s * t``. All these sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.plugin import RewriteContext
from polyfuse_quantized.patterns import Stored

_CONVERT: Final = "prims.convert_element_type.default"
_MULTIPLY: Final = "aten.mul.Tensor"
_MOST_DEPTH: Final = 1 << 15
"""Differences of bytes are up to 255: so many products of them are below 2**31."""

_SIGN: Final = 128
"""Between a byte and the signed byte that has the same bits but one."""


def integer_linear(ctx: RewriteContext, x: Stored, weight: Stored, bias: Node | None) -> Node | None:
    """A linear layer of numbers of sizes (rows, depth) and (columns, depth); None: its sums are too large."""
    matrix = ctx.tensor(weight.numbers)
    if matrix is None or matrix.dim() != 2 or not isinstance(matrix.shape[1], int):
        return None
    if not 0 < matrix.shape[1] <= _MOST_DEPTH:
        return None
    return _Layer(ctx, x, weight, int(matrix.shape[1])).scaled(bias)


@dataclass(frozen=True)
class _Layer:
    """One layer, as calls before the one at hand."""

    ctx: RewriteContext
    x: Stored
    weight: Stored
    depth: int

    def scaled(self, bias: Node | None) -> Node:
        """The result, in f32."""
        signed, zero = self._signed()
        sums = self._converted(self._sums(signed, zero), torch.float32)
        if self.ctx.number(self.weight.zero) != 0:
            sums = self._call("sub.Tensor", sums, self._of_rows(signed, zero))
        scale = self._call(_MULTIPLY, self._number(self.weight.scale), self._number(self.x.scale))
        found = self._call(_MULTIPLY, sums, scale)
        return found if bias is None else self._call("add.Tensor", found, bias)

    def _signed(self) -> tuple[Node, Any]:
        """The numbers of `x` as signed bytes, and their zero point."""
        numbers, zero = self.x.numbers, self._whole(self.x.zero)
        if self.x.kind is torch.int8:
            return numbers, zero
        moved = self._call("sub.Tensor", self._converted(numbers, torch.int32), _SIGN)
        zero = zero - _SIGN if isinstance(zero, int) else self._call("sub.Tensor", zero, _SIGN)
        return self._converted(moved, torch.int8), zero

    def _sums(self, signed: Node, zero: Any) -> Node:
        """``sum((a - p) * b)`` in 32 bits: (rows, columns)."""
        ctx, numbers = self.ctx, self.weight.numbers
        other = ctx.call("aten.permute.default", (numbers, [1, 0]))
        if zero == 0:
            return ctx.call("aten._int_mm.default", (signed, other))
        if ctx.settings.freezing:  # from a parameter alone, so that it is computed once
            products = ctx.call("aten._int_mm.default", (signed, other))
            columns = ctx.call("aten.sum.dim_IntList", (numbers, [1]), {"dtype": torch.int32})
        else:  # a further row costs less than reading the weight once more
            like = ctx.tensor(numbers)
            assert like is not None
            kind = {"dtype": torch.int8, "device": like.device, "pin_memory": False}
            ones = ctx.call("aten.full.default", ([1, self.depth], 1), kind)
            both = ctx.call("aten.cat.default", ([signed, ones],))
            with_columns = ctx.call("aten._int_mm.default", (both, other))
            products = ctx.call("aten.slice.Tensor", (with_columns, 0, 0, -1))
            columns = ctx.call("aten.select.int", (with_columns, 0, -1))
        return self._call("sub.Tensor", products, self._call(_MULTIPLY, columns, zero))

    def _of_rows(self, signed: Node, zero: Any) -> Node:
        """``q * sum(a - p)``: (rows, columns), or (rows, 1)."""
        kind = {"dtype": torch.int32}
        total = self.ctx.call("aten.sum.dim_IntList", (signed, [1], True), kind)
        if zero != 0:
            shift = zero * self.depth if isinstance(zero, int) else self._call(_MULTIPLY, zero, self.depth)
            total = self._call("sub.Tensor", total, shift)
        return self._call(_MULTIPLY, self._converted(total, torch.float32), self._number(self.weight.zero))

    def _whole(self, zero: Any) -> Any:
        return zero if isinstance(zero, int) else self._converted(zero, torch.int32)

    def _number(self, value: Any) -> Any:
        return value if isinstance(value, int | float) else self._converted(value, torch.float32)

    def _converted(self, value: Node, dtype: torch.dtype) -> Node:
        tensor = self.ctx.tensor(value)
        if tensor is not None and tensor.dtype is dtype:
            return value
        return self.ctx.call(_CONVERT, (value, dtype))

    def _call(self, name: str, *args: Any) -> Any:
        left, right = args
        if not isinstance(left, Node) and not isinstance(right, Node):
            return left * right
        if not isinstance(left, Node):  # only products have a number first
            args = right, left
        return self.ctx.call(name if "." in name and name.startswith("aten") else f"aten.{name}", args)
