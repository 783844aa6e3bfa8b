"""Makes the program of a class when its sizes are first met."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from polyfuse.base.log import get_logger
from polyfuse.runtime.sized import SizedPrograms

if TYPE_CHECKING:
    from polyfuse.compiler.sizes.classes import ClassKey, SizeClasses

_log = get_logger("compiler")

Program: TypeAlias = Callable[[list[Any]], Any]


def chosen_by_size(
    classes: SizeClasses,
    first: Program,
    compiled: Callable[[ClassKey, tuple[Any, ...]], Program],
    eager: Program | None,
    name: str,
    seen: dict[str, int],
) -> SizedPrograms[Program]:
    """Chooses among the programs of a graph.

    Args:
        first: the program of the class of `classes.met`.
        compiled: compiles the program of a class, made for some sizes of it; for an empty class, one that
            serves all sizes.
        eager: runs the graph where no program can be compiled; None: what compiling raised is raised.
        name: of the graph, for messages.
        seen: values that data decided in the last call (`SizeClasses.noted`); programs write them there.
    """

    def make(key: ClassKey, sizes: tuple[Any, ...]) -> Program:
        if key and not classes.allows(len(found.programs)):
            return found.of_class((), sizes)
        try:
            return compiled(key, sizes)
        except Exception as error:
            if eager is None:
                raise
            _log.warning(
                "graph %s has no program of its own for sizes %s (%s: %s)",
                name,
                sizes,
                type(error).__name__,
                error,
                exc_info=_log.isEnabledFor(logging.DEBUG),
            )
            return found.of_class((), sizes) if key else eager

    found = SizedPrograms(classes.positions, classes.key, make, seen)
    found.programs[classes.key(classes.met)] = first
    return found
