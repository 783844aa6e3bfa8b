"""The program of a graph of equal layers, which runs them in a loop."""

from __future__ import annotations

from collections.abc import Mapping, Set

from polyfuse.base.log import get_logger
from polyfuse.base.settings import Settings
from polyfuse.compiler.layers.shown import Layers
from polyfuse.frontend.periods import NotRepeated
from polyfuse.program import Program, make_program
from polyfuse.program.loops import NotALoop

_log = get_logger("compiler")


def program_in_loop(
    layers: Layers,
    settings: Settings,
    joining: Mapping[str, Set[str]],
) -> Program | None:
    """The program of the few layers that were scheduled, which runs those between them in a loop.

    None where nothing was left out, and where every step has to be shown: a native host program has no loops,
    and what looks at values tells which layer made them.

    Args:
        layers: as they are to be planned.
        joining: as `program.make_program` has it.
    """
    if layers.expansion is None:
        return None
    if settings.native_host or settings.nan_asserts or settings.observe or settings.benchmark_harness:
        return None
    few = layers.few
    try:
        program = make_program(few, settings, joining, skipped=layers.expansion.skipped(few))
    except (NotALoop, NotRepeated) as error:
        _log.info("graph %s has no loop: %s", few.graph.name, error)
        return None
    return None if program.series or program.recording is not None else program
