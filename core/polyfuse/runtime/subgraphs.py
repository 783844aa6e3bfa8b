"""Compiled functions that an operator calls, such as the branches of a condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from polyfuse.runtime.checks import conform

DENSE = "dense"
"""A layout: row by row, whatever the sizes are."""

Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]] | str | None
"""Of an argument: its sizes and strides, `DENSE`, or None where it is no tensor."""


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Called like the function that it was compiled from.

    Attributes:
        run: takes a list of arguments and returns the flat results.
        layouts: what `run` takes arguments to be. One that lies otherwise is copied.
        single: whether the function returns its only result as it is, not in a tuple.
        name: for people.
    """

    run: Callable[[list[Any]], Sequence[Any]]
    layouts: tuple[Layout, ...]
    single: bool
    name: str

    def __call__(self, *args: Any) -> Any:
        results = self.run([_with_layout(a, layout) for a, layout in zip(args, self.layouts, strict=True)])
        return results[0] if self.single else tuple(results)


def _with_layout(argument: Any, layout: Layout) -> Any:
    if layout is None or not isinstance(argument, torch.Tensor):
        return argument
    if isinstance(layout, str):
        return argument.contiguous()
    return conform(argument, *layout)
