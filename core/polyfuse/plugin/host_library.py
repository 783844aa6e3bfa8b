"""Models that run without Python, as data: a native host program with all that a library needs to offer it as
a function of plain tensors.

Sizes that vary are texts over symbols, as packages have them: integers, names, `+ - * // % **`,
comparisons, and the functions of `SIZE_FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyfuse.plugin.host import HostProgram
    from polyfuse.plugin.source import Source

__all__ = [
    "SIZE_FUNCTIONS",
    "HostArgument",
    "HostLibrary",
    "HostResult",
    "HostSymbol",
    "HostWeight",
    "SizeText",
]

SizeText = int | str
"""A number, or the text of an expression over symbols."""

SIZE_FUNCTIONS = (
    *("Eq", "Ne", "And", "Or", "Not", "Abs", "Max", "Min", "max", "min"),
    *("Mod", "PythonMod", "FloorDiv", "CleanDiv", "CeilDiv"),
)
"""Functions that texts of sizes and conditions call, besides the names `true` and `false`."""


@dataclass(frozen=True)
class HostArgument:
    """One leaf of what a model is called with.

    Attributes:
        name: for messages.
        kind: `tensor`, `number` (an integer) or `fixed` (compiled in: a caller does not give it).
        size, stride: of a tensor; of a number, its text is the only element of `size`.
        mutated: whether the program writes to the tensor.
    """

    name: str
    kind: str
    dtype: str = ""
    size: tuple[SizeText, ...] = ()
    stride: tuple[SizeText, ...] = ()
    mutated: bool = False


@dataclass(frozen=True)
class HostResult:
    """One leaf of what a model returns.

    Attributes:
        name: for messages.
        kind: `tensor`, `number` (an integer that varies), `value` (the same in every call) or `none`.
        value: of that kind: an integer, a fraction or a truth value.
    """

    name: str
    kind: str
    dtype: str = ""
    size: tuple[SizeText, ...] = ()
    value: bool | int | float = 0


@dataclass(frozen=True)
class HostWeight:
    """A tensor that the program reads besides its arguments: where in the weights it lies, in bytes.

    `mutable`: whether the program writes to it.
    """

    name: str
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    bytes: int
    mutable: bool


@dataclass(frozen=True)
class HostSymbol:
    """A size that varies, with inclusive bounds; None: no bound."""

    name: str
    lower: int | None
    upper: int | None


@dataclass(frozen=True)
class HostLibrary:
    """All of a model.

    Attributes:
        name: of the entry.
        program: what happens in a call.
        kernels: sources of `program.kernels`, which `Backend.emit` of the same backend made.
        arguments: what a call gives, flat.
        inputs: for each of the program's inputs, whether it is an `argument` or a `weight`, and which one.
        weights: what `inputs` and `constants` count.
        constants: positions of weights by keys of the program's object table.
        results: what a call returns, flat, as `program.returns` has them.
        symbols, conditions: what must be true of sizes.
        member: the file in a package that holds weights, as the first of its members and not compressed.
    """

    name: str
    program: HostProgram
    kernels: tuple[Source, ...]
    arguments: tuple[HostArgument, ...]
    inputs: tuple[tuple[str, int], ...]
    weights: tuple[HostWeight, ...]
    constants: Mapping[str, int]
    results: tuple[HostResult, ...]
    symbols: tuple[HostSymbol, ...]
    conditions: tuple[str, ...]
    member: str
