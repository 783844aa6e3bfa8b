"""What is timed, as plain data that another process understands: operands, library calls, built kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyfuse.base.settings import Settings

__all__ = [
    "CallWork",
    "Candidate",
    "Circumstances",
    "KernelWork",
    "Operand",
    "Problem",
    "Slot",
    "Storage",
    "TorchName",
    "Window",
    "Work",
]


@dataclass(frozen=True)
class Storage:
    """The elements of one buffer.

    Attributes:
        dtype: torch's name of the type.
        device: where it lies.
        count: elements.
        fill: `normal` (random), `small` (whole numbers from 0 to 7), `zero`, for what may be indices, or
            `ends` and a number: where groups end that share so much almost evenly.
        cold: whether a model would read it from memory, not from a cache, such as weights.
        updated: whether a candidate reads it and then writes to it. Each sample begins with the same numbers,
            since those that were updated often enough are too small for processors to be as fast as usual.
    """

    dtype: str
    device: str
    count: int
    fill: str = "normal"
    cold: bool = False
    updated: bool = False

    @property
    def about(self) -> str:
        """Its type and number of elements."""
        return f"{self.dtype}[{self.count}]"


@dataclass(frozen=True)
class Slot:
    """A storage of a problem, by its number."""

    number: int


@dataclass(frozen=True)
class Window:
    """A tensor on a storage."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str


@dataclass(frozen=True)
class TorchName:
    """An object that torch has under a name, such as a dtype."""

    name: str


@dataclass(frozen=True)
class CallWork:
    """A call of an operator.

    Attributes:
        op: its name.
        args, named: its arguments: numbers, texts, tuples, `Window`, `TorchName`; another call stands for its
            result, which is computed before anything is timed.
        into: where the result belongs.
        out: whether it is called with `out=`.
    """

    op: str
    args: tuple[object, ...]
    named: tuple[tuple[str, object], ...] = ()
    into: Window | None = None
    out: bool = False


@dataclass(frozen=True)
class KernelWork:
    """A launch of a built kernel: who loads it, from where, and what it is launched with."""

    backend: str
    folder: str
    key: str
    operands: tuple[Operand, ...]


Operand = Slot | CallWork | int
"""What a kernel is launched with."""

Work = CallWork | KernelWork


@dataclass(frozen=True)
class Candidate:
    """One way to do it: steps in order."""

    name: str
    steps: tuple[Work, ...]


@dataclass(frozen=True)
class Problem:
    """What all candidates of a race share.

    Attributes:
        about: what it is, for people.
        device: where it runs.
        timer: the backend that times work on the device.
        storages: the operands; one that occurs twice is one storage.
        results: the storages that every candidate fills.
        tolerance: by how much results may differ, relative to the largest of the first candidate.
    """

    about: str
    device: str
    timer: str
    storages: tuple[Storage, ...]
    results: tuple[int, ...] = ()
    tolerance: float = 0.0


@dataclass(frozen=True)
class Circumstances:
    """How the process that compiles is set up, for another one to be like it.

    Attributes:
        settings: the options.
        backends: where each backend's class is, as its manifest says, by name.
        threads: how many compute.
        flags: switches of torch that decide how libraries compute.
    """

    settings: Settings
    backends: Mapping[str, str]
    threads: int = 1
    flags: Mapping[str, object] = field(default_factory=dict)
