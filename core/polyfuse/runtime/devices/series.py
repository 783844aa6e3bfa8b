"""Series of launches: kernel by kernel as the program's text has them, until a launcher carries out all in
one call.

Launchers offer that (`offer_series`). It is taken once every kernel of a series was launched on its own:
whatever looks at first launches, or replaces kernels, or measures them, does so as before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from polyfuse.runtime.explain import line_map, running_note
from polyfuse.runtime.native import allocator, reinterpret_tensor
from polyfuse.runtime.provisional import Provisional
from polyfuse.runtime.workspace import empty_strided_cpu_large

_TRIES = 8
"""Calls after which kernels that are still being looked at are taken to stay so."""

Call = Callable[[list[Any]], tuple[Any, ...]]


@dataclass(frozen=True)
class SeriesPlan:
    """The work of a launcher.

    Attributes:
        name: of the function in the program.
        inputs: how many tensors are given, first in the list; they have the first slots.
        symbols: names of the numbers behind them.
        slots: how many slots there are.
        returns: slots of the results.
        rows: the steps, as `polyfuse.program.steps.SeriesRow` has them; of a tensor, the type is torch's.
            There are no matmuls where the backend of a kernel joins none (`Backend.joins_matmuls`).
        kernels: launchables by name.
        allocate: ``(size, stride, dtype) -> Tensor``.
        view: ``(tensor, size, stride) -> Tensor``; behind the stride, elements from the tensor's start may be
            given.
        each: does the same kernel by kernel. To be called, before anything is done, where a number is no
            `int` or a kernel was not compiled for it, and while torch's profiler records, which shows
            kernels.
        explain: to be called with the error of a launch and its number among the launches; it raises nothing.
        alone: whether nothing but kernels computes in the program (`polyfuse.runtime.launching.alone`).
    """

    name: str
    inputs: int
    symbols: tuple[str, ...]
    slots: int
    returns: tuple[int, ...]
    rows: tuple[tuple[Any, ...], ...]
    kernels: Mapping[str, Callable[..., Any]]
    allocate: Callable[..., torch.Tensor]
    view: Callable[..., torch.Tensor]
    each: Call
    explain: Callable[[BaseException, int], None]
    alone: bool = False


Joiner = Callable[[SeriesPlan], Call | None]
"""From a plan to a function of the inputs and numbers, in a list that it empties, which returns a tuple of
the results; None where some kernel is not the launcher's, or a number has no form that it knows."""

_JOINERS: dict[str, Joiner] = {}


def offer_series(launcher: str, join: Joiner) -> None:
    """Have series carried out by a launcher, known by a name; a later offer replaces one before."""
    _JOINERS[launcher] = join


def attach_series(namespace: dict[str, Any], text: str) -> None:
    """Replace a program's functions for its series by objects that look for a launcher."""
    for name, inputs, symbols, slots, returns, rows in namespace.get("SERIES", ()):
        namespace[name] = LaunchSeries(namespace, text, (name, inputs, symbols, slots, returns, rows))


class LaunchSeries:
    """One series of a program."""

    def __init__(self, namespace: dict[str, Any], text: str, table: tuple[Any, ...]) -> None:
        self._namespace = namespace
        self._text = text
        self._table = table
        self._each: Call = namespace[table[0]]
        self._tries = _TRIES

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        results = self._each(args)
        self._tries -= 1
        kernels = self._kernels()
        if kernels is not None:
            self._namespace[self._table[0]] = self._joined(kernels) or self._each
        elif not self._tries:
            self._namespace[self._table[0]] = self._each
        return results

    def _kernels(self) -> dict[str, Callable[..., Any]] | None:
        """The kernels; None where one of them is still being looked at."""
        found: dict[str, Callable[..., Any]] = {}
        for row in self._table[-1]:
            if row[0] == "launch":
                kernel = self._namespace[row[1]]
                if isinstance(kernel, Provisional):
                    kernel = kernel.works
                if kernel is None:
                    return None
                found[row[1]] = kernel
        return found

    def _joined(self, kernels: Mapping[str, Callable[..., Any]]) -> Call | None:
        name, inputs, symbols, slots, returns, rows = self._table
        typed = ("tensor", "part")
        device = self._namespace["DEVICE"].partition(":")[0]
        plan = SeriesPlan(
            name,
            inputs,
            symbols,
            slots,
            returns,
            tuple((*row[:-1], getattr(torch, row[-1])) if row[0] in typed else row for row in rows),
            kernels,
            # under the guard of the program, its device is the current one
            allocator(device) if device else empty_strided_cpu_large,
            reinterpret_tensor,
            self._each,
            self._explain,
            bool(self._namespace.get("ALONE")),
        )
        joined = (join(plan) for join in _JOINERS.values())
        return next((call for call in joined if call is not None), None)

    def _explain(self, error: BaseException, number: int) -> None:
        """Say which lines of the model a launch comes from, as where it fails on its own."""
        lines = self._text.splitlines()
        start = lines.index(f"def {self._table[0]}(args):")
        launch = re.compile(rf"    (?:{'|'.join(map(re.escape, self._kernels() or ()))})\(")
        launches = [i for i, line in enumerate(lines[start:], start + 1) if launch.match(line)]
        origin = line_map(self._text).get(launches[number]) if number < len(launches) else None
        if origin is not None:
            line = lines[launches[number] - 1]
            error.add_note(running_note(origin, self._namespace["__file__"], launches[number], line))
