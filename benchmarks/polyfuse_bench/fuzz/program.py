"""A program: inputs, statements and results as text, so that it can be run, traced, shrunk and written down.

The same text runs in two ways: with the element types that it names, and with float64 instead.
"""

from __future__ import annotations

import hashlib
import linecache
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["DTYPES", "FLOATS", "Input", "Namespace", "Program", "Statement"]

DTYPES: Mapping[str, torch.dtype] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f64": torch.float64,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "b8": torch.bool,
}

FLOATS = ("f32", "bf16", "f16", "f64")

Namespace = dict[str, Any]

_FLOAT_CAST = re.compile(r"\.to\((?:f32|bf16|f16|f64)\)")


@dataclass(frozen=True)
class Input:
    """One argument: `text` makes it, of `normal(type, sizes)`, `below(limit, sizes)` and `flags(sizes)`."""

    name: str
    text: str


@dataclass(frozen=True)
class Statement:
    """One line.

    Attributes:
        text: the line, an assignment or a call that writes in place.
        targets: names that it binds.
        reads: names of tensors that it accumulates over: its own rounding is in proportion to these.
        writes: the name whose memory it overwrites.
        rounds: whether its floating-point results are rounded: those of a view or of `relu` are not.
    """

    text: str
    targets: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: str = ""
    rounds: bool = True

    @cached_property
    def code(self) -> CodeType:
        """To be run in a namespace."""
        return compile(self.text, "<statement>", "exec")

    @cached_property
    def wide_code(self) -> CodeType:
        """The same in float64, where a cast is still a copy."""
        return compile(_FLOAT_CAST.sub(".to(f64, copy=True)", self.text), "<statement>", "exec")


@dataclass(frozen=True)
class Program:
    """A function of tensors.

    Attributes:
        seed: of the values of its inputs.
    """

    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    seed: int = 0

    @property
    def body(self) -> str:
        """The function as Python."""
        names = ", ".join(i.name for i in self.inputs)
        lines = [f"def program({names}):", *(f"    {s.text}" for s in self.statements)]
        return "\n".join([*lines, f"    return ({', '.join(self.results)},)", ""])

    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        """The function, with a source that Dynamo finds."""
        text = self.body
        name = f"<program {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        space = namespace()
        exec(compile(text, name, "exec"), space)
        found: Callable[..., tuple[Tensor, ...]] = space["program"]
        return found

    def arguments(self, wide: bool = False, device: str = "cpu") -> list[Tensor]:
        """Its inputs, with equal values at every call; `wide`: in float64, with the values that the narrower
        types hold. Strides are as the texts say, on every device.
        """
        return [self.argument(i, wide, device) for i in self.inputs]

    def argument(self, made: Input, wide: bool = False, device: str = "cpu") -> Tensor:
        """One of them. Its values do not depend on the others."""
        makers = _makers(self.seed * 10_007 + zlib.crc32(made.name.encode()), wide, device)
        found: Tensor = eval(made.text, {"torch": torch, **makers})
        return found


def namespace(wide: bool = False) -> Namespace:
    """What statements may name; `wide`: every floating-point type is float64."""
    types = {n: torch.float64 if wide and n in FLOATS else t for n, t in DTYPES.items()}
    return {"torch": torch, "F": functional, **types}


def _makers(seed: int, wide: bool, device: str) -> dict[str, Callable[..., Tensor]]:
    """The functions that texts of inputs call. Values are drawn on the CPU, in turn."""
    generator = torch.Generator().manual_seed(seed)

    def normal(dtype: str, *sizes: int) -> Tensor:
        value = torch.randn(sizes, generator=generator).to(DTYPES[dtype])
        return (value.double() if wide else value).to(device)

    def below(limit: int, *sizes: int, dtype: str = "i64") -> Tensor:
        return torch.randint(0, limit, sizes, generator=generator).to(DTYPES[dtype]).to(device)

    def order(length: int) -> Tensor:
        return torch.randperm(length, generator=generator).to(device)

    def flags(*sizes: int) -> Tensor:
        return (torch.randn(sizes, generator=generator) > -0.5).to(device)

    return {"normal": normal, "below": below, "order": order, "flags": flags}
