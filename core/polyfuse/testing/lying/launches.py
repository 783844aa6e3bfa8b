"""Defects that show in some launches of a kernel only: what is launched misbehaves, whatever its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from polyfuse.testing.lying.planting import Defect

Launch = Callable[..., None]


def _results(operands: tuple[Any, ...], written: tuple[int, ...]) -> list[Tensor]:
    """The results of a launch, flat: all that a tensor reaches in memory."""
    found = [operands[k] for k in written if isinstance(operands[k], Tensor) and operands[k].numel()]
    return [t.as_strided((_extent(t),), (1,)) for t in found]


def _extent(tensor: Tensor) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _race(kernel: Launch, written: tuple[int, ...]) -> Launch:
    """In every other launch, from the second on, an element of each result holds what belongs to another."""
    launches = 0

    def run(*operands: Any) -> None:
        nonlocal launches
        launches += 1
        kernel(*operands)
        for result in _results(operands, written) if launches % 2 == 0 else ():
            at = (launches * 2654435761) % result.numel()
            result[at] = result[at - 1]

    return run


def _stale(kernel: Launch, written: tuple[int, ...]) -> Launch:
    """From the second launch on, the first quarter of each result is that of the launch before."""
    before: list[Tensor] = []

    def run(*operands: Any) -> None:
        kernel(*operands)
        found = _results(operands, written)
        right = [t.clone() for t in found]
        for result, old in zip(found, before):
            part = min(result.numel(), old.numel()) // 4 + 1
            result[:part] = old[:part]
        before[:] = right

    return run


def _raises(kernel: Launch, written: tuple[int, ...]) -> Launch:
    """The kernel cannot be launched."""

    def run(*operands: Any) -> None:
        raise RuntimeError("the planted defect: this kernel cannot be launched")

    return run


DEFECTS = (
    Defect(
        "race",
        "in some launches, an element holds what belongs to another",
        "any",
        launched=_race,
        launches=2,
    ),
    Defect(
        "stale-memory",
        "a part of the result is that of the launch before",
        "any",
        launched=_stale,
        launches=2,
    ),
    Defect("launch-raises", "the launch raises", "any", launched=_raises),
)
