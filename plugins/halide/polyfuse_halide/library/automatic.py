"""Kernels whose schedule is left to one of Halide's automatic schedulers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import halide as hl

from polyfuse_halide.library.math.arithmetic import Value
from polyfuse_halide.library.passes import Body
from polyfuse_halide.library.stages import Input, Program

__all__ = ["AutomaticProgram"]


@dataclass
class AutomaticProgram(Program):
    """What a generated program builds: stages without schedules, of sizes that are all known.

    Attributes:
        scheduler: the scheduler's name.
        parallelism: how many there are.
        once: whether no point of a result may be computed twice.
        limits: the extents of each buffer, by the name that Halide gives it, innermost first.
        results: extents of the stages that store, by name and by their variables' names.
    """

    scheduler: str = ""
    parallelism: int = 1
    once: bool = False
    limits: dict[str, list[int]] = field(default_factory=dict)
    results: dict[str, dict[str, int]] = field(default_factory=dict)

    def scheduled_by(self, scheduler: str, parallelism: int, once: bool) -> None:
        """Say who is asked."""
        self.scheduler, self.parallelism, self.once = scheduler, parallelism, once

    def input(self, name: str, dtype: str, extent: Any = None, backwards: bool = False) -> Input:
        """A buffer that is read, and its number of elements."""
        found = super().input(name, dtype, extent, backwards)
        found.param.dim(0).set_estimate(0, extent)
        self.limits[found.param.name()] = [extent]
        return found

    def store(
        self, name: str, looped: bool, strides: Sequence[Sequence[Any]], body: Body
    ) -> Callable[..., list[Value]]:
        """Store values at indices that are sums of axes times strides."""
        found = super().store(name, looped, strides, body)
        func = self.outputs[-1].func
        # Halide gives a name that is taken another ending
        name, extents = func.name(), {**self.axes, **(self.loops if looped else {})}
        self.results[name] = extents
        inward = list(reversed(extents.values()))
        buffers = func.output_buffers()
        for number, buffer in enumerate(buffers):
            self.limits[f"{name}.{number}" if len(buffers) > 1 else name] = inward
            for dim, extent in enumerate(inward):
                buffer.dim(dim).set_estimate(0, extent)
        return found

    def finish(self) -> tuple[Any, list[Any]]:
        """The pipeline, not scheduled yet, and its arguments."""
        return hl.Pipeline(self.order), [hl.Argument(p) for p in self.inputs]
