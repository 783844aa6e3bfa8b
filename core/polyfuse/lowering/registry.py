"""The registry of lowerings: operator name to the function that expresses it in the IR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from polyfuse.plugin.lowering import Lowering

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


class Registry:
    """A table of lowerings by operator name (``aten.add.Tensor``)."""

    def __init__(self) -> None:
        self._rows: dict[str, Lowering] = {}

    def add(self, names: tuple[str, ...], lowering: Lowering) -> None:
        """Register a lowering under names; each name once.

        Raises:
            ValueError: a name is taken.
        """
        for name in names:
            if name in self._rows:
                raise ValueError(f"{name} has two lowerings; remove one of them")
            self._rows[name] = lowering

    def get(self, name: str) -> Lowering | None:
        """The lowering of an operator, or None."""
        return self._rows.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._rows))


REGISTRY = Registry()
"""All lowerings. Filled when the family modules are imported."""


def lowers(
    *names: str, view: bool = False, library: bool = False, passes: int = 1, stores: tuple[int, ...] = ()
) -> Callable[[F], F]:
    """Register the decorated function for operators."""

    def register(function: F) -> F:
        REGISTRY.add(names, Lowering(function, view, library, passes, stores))
        return function

    return register
