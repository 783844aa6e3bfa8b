"""A compiled graph that was cut into regions: what calls them in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Strides: TypeAlias = tuple[int, ...] | None


@dataclass(frozen=True)
class RegionCall:
    """One call among those of a graph, whose values have numbers, the graph's inputs first.

    Attributes:
        run: takes the values `reads` and returns the values `writes`.
        strides: of each result, as those who read it expect them; None: it is no tensor.
        frees: values that nobody reads after it.
    """

    run: Callable[..., Sequence[Any]]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    strides: tuple[Strides, ...]
    frees: tuple[int, ...]


def in_order(calls: Sequence[RegionCall], results: Sequence[int | None], count: int) -> Callable[..., Any]:
    """A function of a graph's inputs that makes the calls and returns the values `results` (None: None).

    Args:
        count: of values in all.
    """

    def run(*inputs: Any) -> tuple[Any, ...]:
        values: list[Any] = [*inputs, *[None] * (count - len(inputs))]
        del inputs
        for call in calls:
            made = call.run(*[values[number] for number in call.reads])
            for number, value, strides in zip(call.writes, made, call.strides, strict=True):
                values[number] = laid_out(value, strides)
            for number in call.frees:
                values[number] = None
        return tuple(None if number is None else values[number] for number in results)

    return run


def laid_out(value: Any, strides: Strides) -> Any:
    """A value with the strides that its readers expect: itself, or a copy through which gradients pass."""
    if strides is None or value.stride() == strides:
        return value
    empty = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return empty.copy_(value)
