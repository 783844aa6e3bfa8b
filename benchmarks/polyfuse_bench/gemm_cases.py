"""Matmuls that are measured: shapes, what follows them, and arguments for operands of each type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

_CACHED = 120 << 20
"""Bytes of arguments that no cache of a device holds."""
SCALED = ("float8_e4m3fn", "float8_e5m2")
"""Types of operands of which each row has a scale; results are bf16. Such matmuls have no batches."""

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """`rows` by `inner` times `inner` by `outer`, so often."""

    rows: int
    inner: int
    outer: int
    then: str
    batch: int = 1

    @property
    def name(self) -> str:
        often = f"{self.batch}x" if self.batch > 1 else ""
        return f"{often}{self.rows}x{self.inner}x{self.outer}-{self.then}"

    def function(self, dtype: str) -> Function:
        """What is compiled for operands of a type."""
        return (SCALED_FUNCTIONS if dtype in SCALED else FUNCTIONS)[self.then]

    def arguments(self, dtype: str, device: str, most: int) -> list[Tensors]:
        """At most so many sets of arguments, as many as leave none in a cache."""
        many = () if self.batch == 1 else (self.batch,)
        result = torch.bfloat16 if dtype in SCALED else getattr(torch, dtype)
        operands = (
            torch.randn((*many, size, self.inner), device=device).to(getattr(torch, dtype))
            for size in (self.rows, self.outer)
        )
        others = [
            torch.randn(shape, device=device).to(result)
            for shape in ((self.outer,), (*many, self.rows, self.outer))
        ]
        if dtype in SCALED:
            others += [torch.rand(shape, device=device) + 0.5 for shape in ((self.rows, 1), (1, self.outer))]
        one = (*operands, *others)
        size = sum(t.numel() * t.element_size() for t in one[:2])
        return [one, *(tuple(t.clone() for t in one) for _ in range(min(most - 1, _CACHED // size)))]


def _plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return x @ weight.mT


def linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, weight, bias))


def linear_residual(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    return F.linear(x, weight, bias) + residual


def _scaled(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *scales: torch.Tensor
) -> torch.Tensor:
    return torch._scaled_mm(x, weight.t(), *scales, bias=bias, out_dtype=torch.bfloat16)


def _scaled_plain(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, _: torch.Tensor, *scales: torch.Tensor
) -> torch.Tensor:
    return _scaled(x, weight, None, *scales)


def _scaled_gelu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, _: torch.Tensor, *scales: torch.Tensor
) -> torch.Tensor:
    return F.gelu(_scaled(x, weight, bias, *scales))


def _scaled_residual(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, *scales: torch.Tensor
) -> torch.Tensor:
    return _scaled(x, weight, bias, *scales) + residual


FUNCTIONS: Mapping[str, Function] = {"none": _plain, "gelu": linear_gelu, "residual": linear_residual}
SCALED_FUNCTIONS: Mapping[str, Function] = {
    "none": _scaled_plain,
    "gelu": _scaled_gelu,
    "residual": _scaled_residual,
}
_ROWS = (1, 16, 64, 256, 1024, 4096, 8192)
_LAYERS = ((4096, 4096), (4096, 14336), (14336, 4096), (4096, 6144))
_SQUARES = (512, 1024, 2048, 8192, 16384)
_HEADS = ((96, 512, 64, 512), (96, 512, 512, 64), (32, 2048, 128, 2048), (32, 2048, 2048, 128))

SHAPES: tuple[tuple[int, int, int, int], ...] = (
    *((1, rows, inner, outer) for inner, outer in _LAYERS for rows in _ROWS),
    *((1, n, n, n) for n in _SQUARES),
    *_HEADS,
    (1, 512, 4096, 4096),
    (1, 128, 4096, 32000),
    (1, 2048, 4096, 32000),
)
"""Forty shapes: projections of language models, squares, attention's matmuls, heads over a vocabulary."""


def _cases() -> Mapping[str, Case]:
    """Each shape with one epilogue, then with the next, in an order of which any beginning has all kinds."""
    names = tuple(FUNCTIONS)
    found: dict[str, Case] = {}
    for turn in range(len(names)):
        for position in range(len(SHAPES)):
            batch, rows, inner, outer = SHAPES[position * _STEP % len(SHAPES)]
            then = "none" if batch > 1 else names[(position + turn) % len(names)]
            case = Case(rows, inner, outer, then, batch)
            found.setdefault(case.name, case)
    return found


_STEP = 11
CASES: Mapping[str, Case] = _cases()


def cases_of(dtype: str) -> Sequence[str]:
    """Names of the cases that a type of operands allows, each shape with one epilogue first."""
    return [name for name, case in CASES.items() if case.batch == 1 or dtype not in SCALED]
