"""Which results of a program go out as copies: those that callers hold for so long that a replay would
overwrite them.

What is held in one phase of a program (gradients that a check looks at, a result bound until the next call)
is not held in the next. So for each result it is seen whether its last copy was still alive when its memory
was written again. If not for some calls in a row, it needs no copies any more. To be wrong about that costs a
call without a recording, and another recording if what was handed out last is held for good. So it is tried
with results large enough to matter, and not often.

Gradients that are added up over several steps are held from the first step to the last, and those of the
steps between are added to them at once. So while a copy of a gradient is held, the next one goes out as it
is; where that one was held as well, this is not done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

PATIENCES = (8, 128)
"""Calls in a row without need of a copy, after which none is made: the first time, and so on. Then never."""

LARGE = 1 << 20
"""Bytes from which on a copy takes long enough to matter."""


class CopiedResults:
    """The results of one program that go out as copies.

    Args:
        gradients: whether these are a backward's.

    Attributes:
        positions: of these results.
    """

    def __init__(self, gradients: bool = False) -> None:
        self.positions: set[int] = set()
        self._gradients = gradients
        self._retained: set[int] = set()
        self._times: dict[int, int] = {}
        self._vain: dict[int, int] = {}

    def held(self, positions: Iterable[int], added: bool) -> bool:
        """Callers hold results that a replay would overwrite: copy them from now on. Whether that is news.

        Args:
            positions: of the results.
            added: whether they went out as they are because they would be added to others.
        """
        found = set(positions)
        new = found - self.positions
        wrong = found - self._retained if added else set()
        self._retained |= wrong
        for position in new:
            self._times[position] = self._times.get(position, 0) + 1
            self._vain[position] = 0
        self.positions |= new
        return bool(new or wrong)

    def are_added(self, positions: Iterable[int], nbytes: int) -> bool:
        """Whether gradients, the last copy of which is held, are likely to be added to it at once."""
        return self._gradients and nbytes >= LARGE and self._retained.isdisjoint(positions)

    def overwritten(self, positions: Sequence[int], nbytes: int, needed: bool) -> None:
        """Memory of `nbytes` bytes is about to be written again, with results whose copies went out, and were
        needed or not.
        """
        if nbytes < LARGE:
            return
        for position in positions:
            self._vain[position] = 0 if needed else self._vain.get(position, 0) + 1
            times = self._times.get(position, 1)
            if times <= len(PATIENCES) and self._vain[position] >= PATIENCES[times - 1]:
                self.positions.discard(position)
