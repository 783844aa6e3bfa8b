"""Programs by number: the same number and scale give the same program in every process."""

from __future__ import annotations

from polyfuse_bench.fuzz import steps_memory, steps_rows, steps_values
from polyfuse_bench.fuzz.maker import Maker, Scale
from polyfuse_bench.fuzz.program import Program

__all__ = ["random_program"]

_STEPS = {**steps_values.STEPS, **steps_rows.STEPS, **steps_memory.STEPS}


def random_program(seed: int, scale: Scale | None = None) -> Program:
    """The program of a seed."""
    return Maker(seed, scale or Scale()).make(tuple(_STEPS), tuple(_STEPS.values()))
