"""What a package says of itself: plain data, written as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from polyfuse.aot.schema import typed

_HEAD = ("what", "format", "members")
"""Fields of the file, beside those of the description."""

Size = int | str
"""A number, or the text of an expression over symbols."""


@dataclass(frozen=True)
class BackendNote:
    """Who made kernels, and who loads them.

    Attributes:
        loader: `package.module:function`, called with a folder and `facts`; empty: the backend itself loads.
        distribution, version: which distribution that is in.
        facts: what the backend said of itself and of the machine when the package was made.
    """

    loader: str
    distribution: str
    version: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Unit:
    """A folder that one build made, as members `kernels/<name>/<file>`."""

    backend: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Weight:
    """A tensor that programs read besides their arguments.

    Attributes:
        name: as in the model's `state_dict`.
        kind: `parameter`, `buffer` or `constant`.
        offset, bytes: where in the weights it lies; -1: it is not in the package, and must be given.
        mutable: whether a program writes to it.
    """

    name: str
    kind: str
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    offset: int
    bytes: int
    mutable: bool = False


@dataclass(frozen=True)
class Argument:
    """One leaf of what an entry is called with.

    Attributes:
        name: for messages.
        kind: `tensor`, `number` (one whose value may vary) or `fixed` (a value that was compiled in).
        size, stride: of a tensor; of a number, its expression is the only element of `size`.
        mutated: whether the program writes to the tensor.
        value: of a fixed one.
    """

    name: str
    kind: str
    dtype: str = ""
    device: str = ""
    size: tuple[Size, ...] = ()
    stride: tuple[Size, ...] = ()
    mutated: bool = False
    value: object = None


@dataclass(frozen=True)
class Symbol:
    """Inclusive bounds of a size that may vary; None: no bound."""

    lower: int | None
    upper: int | None


@dataclass(frozen=True)
class Source:
    """Where an input of a program comes from: `argument` or `weight`, and its position among them."""

    origin: str
    position: int


@dataclass(frozen=True)
class Operand:
    """How a function takes one of its arguments.

    Attributes:
        kind: `fixed` (a tensor of this size and stride), `dense` (a tensor whose elements lie row by row) or
            `any` (taken as it is).
    """

    kind: str
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()


@dataclass(frozen=True)
class Function:
    """A function that an operator of a program calls, such as a branch of a condition.

    Attributes:
        key: of the object in the program that calls it.
        program, kernels, objects, calls, functions, kernel_texts: as those of `Entry`.
        operands: its arguments.
        single: whether it returns its only result as it is, not in a tuple.
    """

    key: str
    program: str
    kernels: Mapping[str, tuple[str, str]]
    objects: Mapping[str, int]
    calls: Mapping[str, tuple[str, str]]
    functions: tuple[Function, ...]
    kernel_texts: str
    operands: tuple[Operand, ...]
    single: bool


@dataclass(frozen=True)
class Entry:
    """One function of a package.

    Attributes:
        program: the member that holds its host program.
        kernels: by their names in the program, the unit and the key there.
        objects: keys of constants that the program reads, with their positions among the weights.
        calls: keys of objects that are kernels written by hand, with the unit and the key there.
        inputs: of the program.
        arguments: what a call gives, flat.
        positional, keywords: names of what a call gives, where known.
        symbols: sizes that may vary.
        conditions: texts of what the compiler took to be true of them.
        in_tree, out_tree: how arguments and results are nested, as torch writes it.
        operators: that the program calls.
        functions: that operators of the program call.
        native: the member that holds a library which runs without Python; empty if there is none.
        kernel_texts: the member that holds what kernels were generated from, which checks compare them with:
            a JSON object with a row (name, configuration, operators, text of the representation) for each.
    """

    program: str
    kernels: Mapping[str, tuple[str, str]]
    objects: Mapping[str, int]
    inputs: tuple[Source, ...]
    arguments: tuple[Argument, ...]
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    symbols: Mapping[str, Symbol]
    conditions: tuple[str, ...]
    in_tree: str
    out_tree: str
    operators: tuple[str, ...]
    native: str = ""
    kernel_texts: str = ""
    calls: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    functions: tuple[Function, ...] = ()


def programs(root: Entry | Function) -> Iterator[Entry | Function]:
    """An entry or a function, and all functions below it."""
    yield root
    for function in root.functions:
        yield from programs(function)


@dataclass(frozen=True)
class Description:
    """A whole package.

    Attributes:
        versions: of `polyfuse`, `torch` and `python` that made it.
        system, machine: as `platform` names them.
        devices: device types that it needs.
        device_classes: the class that answers for each of them where torch alone does not, as
            ``package.module:Class``.
        modules: to import before programs are loaded: they register operators.
        weight_member: the member that holds weights; empty if there is none.
        frozen: whether weights are what followed from those of the model, which cannot be replaced.
    """

    versions: Mapping[str, str]
    system: str
    machine: str
    devices: tuple[str, ...]
    modules: tuple[str, ...]
    backends: Mapping[str, BackendNote]
    units: Mapping[str, Unit]
    weights: tuple[Weight, ...]
    entries: Mapping[str, Entry]
    weight_member: str = ""
    device_classes: Mapping[str, str] = field(default_factory=dict)
    frozen: bool = False

    def plain(self) -> dict[str, object]:
        """As data that JSON can hold."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @staticmethod
    def of(data: Mapping[str, Any]) -> Description:
        """The description that `plain` made data of, which the head of the file may accompany.

        Raises:
            SchemaError: a field is missing, unknown or of another type.
        """
        return typed(Description, {k: v for k, v in data.items() if k not in _HEAD}, "the description")
