"""A program from a schedule and from what its kernels need."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from polyfuse.base.settings import Settings
from polyfuse.program.loops.finding import Skipped
from polyfuse.program.planning import plan
from polyfuse.program.series import find_series
from polyfuse.program.steps import Program
from polyfuse.schedule.result import Schedule


def make_program(
    schedule: Schedule,
    settings: Settings,
    joining: Mapping[str, Set[str]],
    noted: tuple[str, ...] = (),
    skipped: Skipped | None = None,
) -> Program:
    """The program of a schedule.

    Args:
        joining: the backends whose launches one call can carry out, and the types of matmuls for which that
            calls a library.
        noted: symbols whose values each call leaves behind.
        skipped: the layers that the schedule leaves out.

    Raises:
        NotALoop: these have no loop.
    """
    program = plan(schedule, settings, observe=settings.observe, skipped=skipped)
    if settings.launch_series:
        program = replace(program, series=find_series(program, joining, schedule.graph.buffers))
    return replace(program, noted=noted)
