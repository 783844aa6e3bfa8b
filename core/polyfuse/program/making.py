"""A program from a schedule and from what its kernels need."""

from __future__ import annotations

from collections.abc import Set
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
    joining: Set[str],
    noted: tuple[str, ...] = (),
    skipped: Skipped | None = None,
) -> Program:
    """The program of a schedule.

    Args:
        joining: the backends whose launches one call can carry out.
        noted: symbols whose values each call leaves behind.
        skipped: the layers that the schedule leaves out.

    Raises:
        NotALoop: these have no loop.
    """
    program = plan(schedule, settings, observe=settings.observe, skipped=skipped)
    if settings.launch_series:
        program = replace(program, series=find_series(program, joining))
    return replace(program, noted=noted)
