"""Programs of one graph for classes of sizes: which one a call runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Generic, TypeVar

from polyfuse.base.process import ForkedLock
from polyfuse.runtime.graphs.status import GraphStatus

_REMEMBERED = 4096
"""Sizes of which the program is remembered."""

Program = TypeVar("Program", bound=Callable[[list[Any]], Any])


@dataclass
class SizeStatus:
    """What was made of a graph whose sizes differ from call to call.

    Attributes:
        made: the sizes for which each program was made, the first one left out.
        recordings: what became of recording the work of those programs, where that was asked for.
    """

    made: list[tuple[Any, ...]] = field(default_factory=list)
    recordings: list[GraphStatus] = field(default_factory=list)

    def text(self) -> str:
        """It, for people."""
        if not self.made:
            return "one program so far"
        shown = ", ".join(" by ".join(map(str, sizes)) for sizes in self.made)
        return f"{1 + len(self.made)} programs; the others were made for {shown}"


class SizedPrograms(Generic[Program]):
    """Chooses a program by the sizes among the inputs, and has it made when such sizes are met for the first
    time.

    Args:
        positions: of the inputs that are sizes.
        class_of: the class of some sizes, in the order of `positions`.
        make: the program of a class; also given the sizes for which it is made.
        seen: further sizes, which programs write there; a call's program is chosen by those of the last call.
    """

    def __init__(
        self,
        positions: Sequence[int],
        class_of: Callable[[tuple[Any, ...]], tuple[Any, ...]],
        make: Callable[[Any, tuple[Any, ...]], Program],
        seen: dict[str, int] | None = None,
    ) -> None:
        self._positions = tuple(positions)
        self._class_of = class_of
        self._make = make
        self._seen = seen or {}
        simple = self._positions and not self._seen
        # of one input it reads the size itself, of several a tuple
        self._read: Callable[[Sequence[Any]], Any] = (
            itemgetter(*self._positions) if simple else self._read_all
        )
        self._lock = ForkedLock(again=True)
        self._known: dict[Any, Program] = {}
        self.programs: dict[tuple[Any, ...], Program] = {}
        self.status = SizeStatus()

    def add(self, key: tuple[Any, ...], sizes: tuple[Any, ...], program: Program) -> None:
        """Add a program that was made for some sizes beside the first one."""
        self.programs[key] = program
        self.status.made.append(sizes)
        # a graph for which no program can be compiled runs in eager mode
        recording = getattr(program, "graph_status", None)
        if recording is not None:
            self.status.recordings.append(recording)

    def __call__(self, args: Sequence[Any]) -> Program:
        """The program for a call with these inputs."""
        read = self._read(args)
        try:
            return self._known[read]
        except (KeyError, TypeError):  # the length of ragged tensors has no hash
            return self._find(read)

    def of_class(self, key: tuple[Any, ...], sizes: tuple[Any, ...]) -> Program:
        """The program of a class, made for some sizes where there is none yet."""
        with self._lock:
            if key not in self.programs:
                self.add(key, sizes, self._make(key, sizes))
            return self.programs[key]

    def _read_all(self, args: Sequence[Any]) -> tuple[Any, ...]:
        return (*[args[i] for i in self._positions], *self._seen.values())

    def _find(self, read: Any) -> Program:
        sizes = read if isinstance(read, tuple) else (read,)
        program = self.of_class(self._class_of(sizes), sizes)
        if all(type(size) is int for size in sizes):
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[read] = program
        return program
