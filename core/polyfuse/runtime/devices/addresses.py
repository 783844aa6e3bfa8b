"""Looking, before a program runs, whether parameters are at addresses that kernels can load from.

`Tensor.data_ptr` takes a tenth of a microsecond. Launchers that read addresses in native code offer to look
at all parameters in one call (`offer_alignment_check`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

AlignmentCheck = Callable[[list[Any]], bool]
"""Of a program's inputs: whether those that it looks at are at multiples of some bytes. It may say no where
they are."""

_makers: list[Callable[[Sequence[int], int], AlignmentCheck]] = []


def offer_alignment_check(make: Callable[[Sequence[int], int], AlignmentCheck]) -> None:
    """Have addresses looked at by what `make` returns for positions among inputs, and bytes; a later offer
    replaces one before.
    """
    _makers[:] = [make]


def alignment_check(positions: Sequence[int], alignment: int) -> AlignmentCheck:
    """The cheapest check there is of inputs at some positions."""
    return _makers[0](positions, alignment) if _makers else partial(_are_aligned, positions, alignment)


def _are_aligned(positions: Sequence[int], alignment: int, args: list[Any]) -> bool:
    return not any(args[at].data_ptr() % alignment for at in positions)
