"""Matmuls as kernels written by hand, for the C++ backend's tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from cpp_kernels import Body, KernelBuilder
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import accumulates
from polyfuse.symbolic import IndexLike, symbol

Change = Callable[[Body, str], str]


@dataclass
class Matmul:
    """`out[b, m, n] = finish(sum over k of left[b, m, k] * right[b, k, n])`, operands laid out as wished.

    `left` and `right` name dimensions from the slowest to the fastest: "bmk" is plain, "bkm" transposed;
    what is left out is broadcast.
    `pad` is put behind every row, so that matrices do not fill memory. With `packed`,
    the right operand lies in packed blocks of so many columns, as `[n // packed, k, packed]`.
    """

    m: int
    n: int
    k: int
    b: int = 1
    dtype: DType = DType.f32
    left: str = "bmk"
    right: str = "bkn"
    out: str = "bmn"
    out_dtype: DType | None = None
    other: DType | None = None
    pad: int = 0
    packed: int = 0
    dynamic: str = ""
    prologue_left: Change | None = None
    prologue_right: Change | None = None
    bias: bool = False
    residual: bool = False
    finish: Change | None = None
    kind: str = "dot"
    sizes: dict[str, IndexLike] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = {"b": self.b, "m": self.m, "n": self.n, "k": self.k}
        self.numbers = numbers
        self.sizes = {
            name: symbol(f"s_{name}", 0) if name in self.dynamic else number
            for name, number in numbers.items()
        }
        self.result = self.out_dtype or accumulates(self.dtype)

    def index(self, order: str, builder: KernelBuilder) -> IndexLike:
        """Where an element of a tensor of some order lies."""
        if self.packed and order == self.right:
            column = builder["n"]
            rows = column // self.packed * self.sizes["k"] + builder["k"]
            return rows * self.packed + column % self.packed
        index: IndexLike = 0
        step: IndexLike = 1
        for position, name in enumerate(reversed(order)):
            index = index + builder[name] * step
            step = step * self.sizes[name] + (self.pad if position == 0 else 0)
        return index

    def kernel(self) -> Kernel:
        """The kernel; the arguments are left, right, bias, residual, out, and the sizes that are dynamic."""
        axes = {name: self.sizes[name] for name in "bmn" if name != "b" or self.b > 1}
        hints = tuple(self.numbers[name] for name in (*axes, "k"))
        builder = KernelBuilder(axes, {"k": self.sizes["k"]}, hints if self.dynamic else ())
        if self.b == 1:
            self.left, self.right, self.out = (
                order.replace("b", "") for order in (self.left, self.right, self.out)
            )
        builder.arg("left", self.dtype), builder.arg("right", self.other or self.dtype)
        if self.bias:
            builder.arg("bias", self.dtype)
        if self.residual:
            builder.arg("residual", self.dtype)
        builder.out("result", self.result)
        for name in self.dynamic:
            builder.size(f"s_{name}")
        body = builder.section(True)
        operands = []
        for name, order, change in (
            ("left", self.left, self.prologue_left), ("right", self.right, self.prologue_right),
        ):  # fmt: skip
            value = body.load(name, self.index(order, builder))
            operands.append(change(body, value) if change else value)
        kind = accumulates(self.dtype)
        total = body._add("reduce", tuple(operands), kind, self.kind)
        body = builder.section()
        if self.finish:
            total = self.finish(body, total)
        if self.bias:
            total = body.op("add", total, widened(body, body.load("bias", builder["n"]), kind))
        if self.residual:
            value = body.load("residual", self.index(self.out, builder))
            total = body.op("add", total, widened(body, value, kind))
        body.store("result", self.index(self.out, builder), widened(body, total, self.result))
        return builder.build()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Fresh arguments by name, as tensors of dimensions b, m, n, k in their own order."""
        made = {"left": self._tensor(self.left, self.dtype), "right": self._tensor(self.right, self.other)}
        if self.packed:
            made["right"] = _fresh((self.n // self.packed, self.k, self.packed), self.dtype)
        if self.bias:
            made["bias"] = _fresh((self.n,), self.dtype)
        if self.residual:
            made["residual"] = self._tensor(self.out, self.dtype)
        made["result"] = self._tensor(self.out, self.result)
        return made

    def _tensor(self, order: str, dtype: DType | None) -> torch.Tensor:
        shape = [self.numbers[name] for name in order]
        if self.pad:
            whole = _fresh((*shape[:-1], shape[-1] + self.pad), dtype or self.dtype)
            return whole[..., : shape[-1]]
        return _fresh(tuple(shape), dtype or self.dtype)

    def arguments(self, tensors: dict[str, torch.Tensor]) -> list[object]:
        """What the kernel is called with."""
        return [*tensors.values(), *(self.numbers[name] for name in self.dynamic)]

    def plain(self, tensor: torch.Tensor, order: str, wanted: str) -> torch.Tensor:
        """A tensor with dimensions in the order wanted, missing ones of size one."""
        present = [name for name in wanted if name in order]
        tensor = tensor.permute([order.index(name) for name in present])
        for position, name in enumerate(wanted):
            if name not in order:
                tensor = tensor.unsqueeze(position)
        return tensor

    def product(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The sums in double precision, [b, m, n]."""
        a = self.plain(left, self.left, "bmk").to(torch.float64)
        if self.packed:
            right, kn = right.movedim(0, 1).reshape(self.k, self.n), "kn"
        else:
            kn = self.right
        b = self.plain(right, kn, "bkn").to(torch.float64)
        return (a @ b).expand(self.b, self.m, self.n)


def widened(body: Body, value: str, dtype: DType) -> str:
    """A value in another type, where that is another."""
    return value if body.kernel.types[value] is dtype else body.cast(value, dtype)


def _fresh(shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
    if dtype.is_float:
        return torch.randn(shape, dtype=torch.float64).to(dtype.torch)
    low = -100 if dtype.is_signed else 0
    return torch.randint(low, 100, shape).to(dtype.torch)
