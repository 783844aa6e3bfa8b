"""Models that run without Python, as data: a native host program with all that a library needs to offer it as
a function of plain tensors.

Sizes that vary are texts over symbols, as packages have them: integers, names, `+ - * // % **`,
comparisons, and the functions of `SIZE_FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyfuse.plugin.host import HostProgram
    from polyfuse.plugin.source import Source

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

    Attributes:
        mutable: whether the program writes to it.
        packed: whether it is a contiguous copy, made when a model is created, of what lies there with these
            strides: a weight as kernels read it.
    """

    name: str
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    bytes: int
    mutable: bool
    packed: bool = False


@dataclass(frozen=True)
class HostSymbol:
    """A size that varies, with inclusive bounds; None: no bound."""

    name: str
    lower: int | None
    upper: int | None


@dataclass(frozen=True)
class HostDevice:
    """A device on which a model without Python computes, as opposed to the CPU that calls it.

    Attributes:
        type: as torch calls it.
        runtime: text of C++ that reserves its memory, copies and launches: the functions that
            `docs/writing-a-backend.md` lists under "Models without Python on a device".
    """

    type: str
    runtime: str = field(repr=False)


@dataclass(frozen=True)
class DeviceCode:
    """A built kernel's code for one kind of chip.

    Attributes:
        chip: a number by which the device's runtime knows the chips that run it.
        code: what the device's driver loads.
        threads: of one block.
        shared: bytes of memory that the threads of a block share.
        scratch, scratch_align: bytes of memory that each block needs for itself, and what their address is a
            multiple of.
        starts_early: whether it waits by itself for the kernel before it, and so may start while that ends.
    """

    chip: int
    code: bytes = field(repr=False)
    threads: int
    shared: int
    scratch: int = 0
    scratch_align: int = 1
    starts_early: bool = False


@dataclass(frozen=True)
class DeviceKernel:
    """A built kernel as a model without Python launches it.

    Attributes:
        name: for messages.
        symbol: the entry point's name in the code.
        device: where it runs.
        arguments: names and kinds of what a launch is called with, in the order of the kernel's arguments:
            `ptr`, or `i32` and `i64`, integers.
        parameters: what the code is given, in order: names of arguments, `zeroed`, `scratch`, or empty for an
            address that is null.
        grid: blocks along x, y and z, over names of integers among the arguments.
        codes: one for each kind of chip.
        cluster: blocks that start together; the first extent of `grid` counts clusters.
        cooperative: whether all blocks must run at once.
        guard: a condition on sizes without which it cannot be launched; empty: none.
        zeroed: words of 64 bits, all zero, that each launch is given as the parameter `zeroed`.
    """

    name: str
    symbol: str
    device: HostDevice
    arguments: tuple[tuple[str, str], ...]
    parameters: tuple[str, ...]
    grid: tuple[SizeText, SizeText, SizeText]
    codes: tuple[DeviceCode, ...]
    cluster: int = 1
    cooperative: bool = False
    guard: str = ""
    zeroed: SizeText = 0


@dataclass(frozen=True)
class HostLibrary:
    """A model that runs without Python, as data for a backend that prints it.

    Attributes:
        name: of the entry.
        program: what happens in a call.
        kernels: sources of `program.kernels`, which `Backend.emit` of the same backend made. None where
            `device` is given.
        arguments: what a call gives, flat.
        inputs: for each of the program's inputs, whether it is an `argument` or a `weight`, and which one.
        weights: what `inputs` and `constants` count.
        constants: positions of weights by keys of the program's object table.
        results: what a call returns, flat, as `program.returns` has them.
        symbols, conditions: what must be true of sizes.
        member: the file in a package that holds weights, as the first of its members and not compressed.
        device: where it computes, if not on the CPU that calls it. Arguments, weights and results lie
            there then; arguments in the CPU's memory are copied.
        launches: of `program.kernels`, on that device.
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
    device: HostDevice | None = None
    launches: tuple[DeviceKernel, ...] = ()
