"""The program of a graph of equal layers, which runs them in a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from polyfuse.base.log import get_logger
from polyfuse.base.settings import Settings
from polyfuse.compiler.layers.repeats import Expansion
from polyfuse.frontend.periods import NotRepeated
from polyfuse.ir.kernel import Alias, Kernel
from polyfuse.program import Program, Scratch, make_program
from polyfuse.program.loops import NotALoop
from polyfuse.runtime.frozen import FROZEN
from polyfuse.schedule.frozen_calls import together
from polyfuse.schedule.kernels.aliasing import without_refused

_log = get_logger("compiler")


def program_in_loop(
    expansion: Expansion,
    refused: Mapping[tuple[str, Kernel], Sequence[Alias]],
    settings: Settings,
    scratch: Mapping[tuple[str, Kernel], Scratch],
    joining: Set[str],
) -> Program | None:
    """The program of the few layers that were scheduled, which runs those between them in a loop.

    None where every step has to be shown: a native host program has no loops, and what looks at values tells
    which layer made them.

    Args:
        refused: pairs of arguments that generators refused to have in one memory, by (backend, kernel).
        scratch, joining: of kernels, as `program.make_program` has them.
    """
    if settings.native_host or settings.nan_asserts or settings.observe or settings.benchmark_harness:
        return None
    # what looks at a parameter's numbers stays in its layer: the loop hands each layer its own
    few, _ = without_refused(together(expansion.old, (FROZEN,)), refused)
    try:
        program = make_program(few, settings, scratch, joining, skipped=expansion.skipped(few))
    except (NotALoop, NotRepeated) as error:
        _log.info("graph %s has no loop: %s", few.graph.name, error)
        return None
    return None if program.series or program.recording is not None else program
