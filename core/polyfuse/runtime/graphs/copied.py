"""Which results of a program go out as copies: those that callers hold for so long that a replay would
overwrite them.

What is held in one phase of a program (gradients that a check looks at, a result bound until the next call)
is not held in the next. So for each result it is seen whether its last copy was still alive when its memory
was written again. If not for some calls in a row, it needs no copies any more. To be wrong about that costs a
call without a recording, and another recording if what was handed out last is held for good. So it is tried
with results large enough to matter, and not often.

Gradients that are added up over several steps are held from the first step to the last, and those of the
steps between are added to them at once. So while a copy of a gradient is held, the next one goes out as it
is; where that one was held as well, this is not done again for some time.

Results of which copy after copy was needed get memory of their own (`own_memory`), in one recording or two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

PATIENCES = (8, 128)
"""Calls in a row without need of a copy, after which none is made: the first time, and so on. Then never."""

RETRIES = (16, 256)
"""Copies after a gradient that was not added to others, before the next is taken for one that will be."""

LASTING = 8
"""Copies in a row that were needed, after which a result gets memory of its own."""

SETS = 2
"""Most recordings with results in memory of their own, for the same inputs."""

LARGE = 1 << 20
"""Bytes from which on a copy takes long enough to matter."""


class CopiedResults:
    """The results of one program that go out as copies.

    Args:
        gradients: whether these are a backward's.

    Attributes:
        positions: of these results.
        lasting: positions of results that get memory of their own instead.
        sets: how many recordings are to have such memory.
    """

    def __init__(self, gradients: bool = False) -> None:
        self.positions: set[int] = set()
        self.lasting: set[int] = set()
        self.sets = 1
        self._gradients = gradients
        self._needed: dict[int, int] = {}
        self._movable = not gradients
        self._failed: dict[int, int] = {}
        self._waiting: dict[int, int] = {}
        self._times: dict[int, int] = {}
        self._vain: dict[int, int] = {}

    def held(self, positions: Iterable[int], added: bool) -> bool:
        """Callers hold results that a replay would overwrite: copy them from now on. Whether that is news.

        Args:
            positions: of the results.
            added: whether they went out as they are because they would be added to others.
        """
        found = set(positions)
        if found & self.lasting and self.sets < SETS:
            # they went out of a pool since their own memory was held
            self.sets += 1
            return True
        new = found - self.positions
        wrong = {position for position in found if added and not self._waiting.get(position)}
        for position in wrong:
            times = self._failed[position] = self._failed.get(position, 0) + 1
            self._waiting[position] = RETRIES[times - 1] if times <= len(RETRIES) else sys.maxsize
        for position in new:
            self._times[position] = self._times.get(position, 0) + 1
            self._vain[position] = 0
        self.positions |= new
        return bool(new or wrong)

    def are_added(self, positions: Sequence[int], nbytes: int) -> bool:
        """Whether gradients, the last copy of which is held, are likely to be added to it at once."""
        if not self._gradients or nbytes < LARGE:
            return False
        waiting = [position for position in positions if self._waiting.get(position)]
        for position in waiting:
            self._waiting[position] -= 1
        return not waiting

    def overwritten(self, positions: Sequence[int], nbytes: int, needed: bool, movable: bool) -> None:
        """Memory of `nbytes` bytes is about to be written again, with results whose copies went out, and were
        needed or not. Whether they could be in other memory: `movable`.
        """
        if nbytes < LARGE:
            return
        for position in positions:
            self._vain[position] = 0 if needed else self._vain.get(position, 0) + 1
            self._needed[position] = self._needed.get(position, 0) + 1 if needed else 0
            times = self._times.get(position, 1)
            if times <= len(PATIENCES) and self._vain[position] >= PATIENCES[times - 1]:
                self.positions.discard(position)
            elif self._needed[position] >= LASTING and movable and self._movable:
                if position not in self.lasting:
                    self.lasting.add(position)
                    self.positions.discard(position)

    def stay(self) -> None:
        """No result can have memory of its own: they are copied where they are held."""
        self.positions |= self.lasting
        self.lasting.clear()
        self._movable = False
