"""How a problem is cut for Hopper: tiles, clusters, stages, and which choices are worth trying."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polyfuse.plugin import Config
from polyfuse_cutlass.problem import Problem

SHARED_LIMIT = 232448
"""Bytes of shared memory that a block may have."""
MULTIPROCESSOR_SHARED = 233472
RESERVED = 1024
"""Bytes of shared memory of a multiprocessor, and of these for each block the system's own."""
_SUMS_TWICE = 192
"""Columns of 64 rows of which a thread can hold two copies of its sums."""
_ROUNDED = 64
_ROUNDED_BYTES = 16 * _ROUNDED * 2
"""Columns of a fragment of 16 rows that is rounded before it leaves a thread, and its bytes."""
_SUMMED = 2
"""Stages of 8-bit floats that multipliers may sum alone. For a depth of 8192 and results in bf16, the mean
error is then 1.02 times that of rounding exact sums; with one stage, as the library has it, 1.01, and with
all of them 1.58.
"""


@dataclass(frozen=True)
class Tiling:
    """One way.

    Attributes:
        blocks: of 64 rows, that a group of warps multiplies at once.
        columns: of a tile.
        consumers: groups of warps that multiply.
        pingpong: whether the groups alternate over tiles, one multiplying while the other finishes; else
            they share each tile.
        stages: of the ring.
        across, down: blocks of a cluster along rows and along columns; they share operands.
        split: blocks of a cluster that each add up a range of the depth (split-K).
        raster: tiles along the rows that are taken before the next column.
        swap: whether rows and columns are exchanged: the columns of a tile may be few.
        fragment: columns that a warp transposes at once at most, 32 or 64: it stores 64 or 128 bytes of
            16-bit results of a row together.
        used: rows of a tile that are of use, where that shares out few tiles evenly; 0: all.
    """

    blocks: int = 1
    columns: int = 256
    consumers: int = 2
    pingpong: bool = False
    stages: int = 4
    across: int = 1
    down: int = 1
    split: int = 1
    raster: int = 8
    swap: bool = False
    fragment: int = 32
    used: int = 0

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return 64 * self.blocks * (1 if self.pingpong else self.consumers)

    @property
    def taken(self) -> int:
        """Rows of a tile that are fetched and stored."""
        return self.used or self.rows

    def accumulator_splits(self, problem: Problem) -> int:
        """Into how many ranges the columns are divided where sums are taken out of the multipliers: a thread
        may have no room for a second copy of all its sums.
        """
        return 2 if problem.promotes and self.blocks * self.columns > _SUMS_TWICE else 1

    def interval(self, problem: Problem) -> int:
        """How many stages are summed in the multipliers before these sums are taken out. Where that is done
        range by range, the stages stay in the ring meanwhile.
        """
        return 1 if self.accumulator_splits(problem) > 1 and self.stages <= _SUMMED else _SUMMED

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.across * self.down * self.split

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (self.consumers + 1)

    @property
    def may_round(self) -> bool:
        """Whether results may be rounded before they leave a thread: in fragments of rows of 64 columns."""
        return self.split == 1 and not self.used and self.columns >= _ROUNDED

    @property
    def chunk(self) -> int:
        """Columns that a warp transposes at once."""
        return next(n for n in (self.fragment, 32, 16, 8) if self.columns % n == 0)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage, its barriers with it."""
        return (self.taken + self.columns) * 128 + 16

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self._shared(self.buffers)

    @property
    def fixed_bytes(self) -> int:
        """Shared memory besides the stages, with one buffer."""
        return self._shared(1) - self.stages * self.stage_bytes

    @property
    def buffers(self) -> int:
        """Buffers in which a warp transposes its results: two where there is room and nobody multiplies
        meanwhile.
        """
        return 2 if not self.pingpong and self.split == 1 and self._shared(2) <= SHARED_LIMIT else 1

    @property
    def staging_bytes(self) -> int:
        """Shared memory in which a warp lays results on their way to memory."""
        return self._staging(self.buffers)

    def _staging(self, buffers: int) -> int:
        if self.split > 1:
            return 0
        row = self.chunk if self.chunk >= 32 else self.chunk + 4
        fragment = 16 * row * 4
        return buffers * (max(fragment, _ROUNDED_BYTES) if self.columns >= _ROUNDED else fragment)

    def _shared(self, buffers: int) -> int:
        staging = self.consumers * 4 * self._staging(buffers)
        order = 16 if self.pingpong else 0
        return 1024 + self.stages * self.stage_bytes + staging + order

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor holds at once."""
        if self.consumers > 1:
            return 1  # two groups of warps that multiply need all registers
        by_memory = MULTIPROCESSOR_SHARED // (self.shared_bytes + RESERVED)
        return max(1, min(by_memory, 4 if self.blocks * self.columns <= 64 else 2))

    @property
    def config(self) -> Config:
        """As the core passes it round."""
        return Config.of(
            blocks=self.blocks,
            columns=self.columns,
            consumers=self.consumers,
            pingpong=int(self.pingpong),
            stages=self.stages,
            across=self.across,
            down=self.down,
            split=self.split,
            raster=self.raster,
            swap=int(self.swap),
            fragment=self.fragment,
            used=self.used,
        )

    @staticmethod
    def of(config: Config) -> Tiling:
        """What `config` wrote."""
        values: dict[str, Any] = dict(config.values)
        return Tiling(
            **{name: bool(value) if name in ("pingpong", "swap") else value for name, value in values.items()}
        )

    def fault(self, problem: Problem) -> str:
        """What is impossible about it, or an empty text."""
        along = problem.left.along, problem.right.along
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory are more than {SHARED_LIMIT}"
        if self.blocks * self.columns > 256 or self.columns % (8 * self.accumulator_splits(problem)):
            return "a thread would hold too many sums"
        if self.fragment not in (32, 64) or (self.fragment == 64 and (self.columns % 64 or self.split > 1)):
            return "no such fragment is transposed"
        if self.used and (
            self.used % 8 or self.used > self.rows or self.pingpong or self.down > 1 or along[0]
        ):
            return f"of {self.rows} rows, the first {self.used} cannot be taken alone"
        if (self.rows - self.taken) > self.stages * self.columns:
            return "what is multiplied in vain would not lie in shared memory"
        if (along[0] and self.rows % (64 * self.down)) or self.rows % (8 * self.down):
            return f"{self.rows} rows cannot be shared by {self.down} blocks"
        if (along[1] and self.columns % (64 * self.across)) or self.columns % (8 * self.across):
            return f"{self.columns} columns cannot be shared by {self.across} blocks"
        if self.taken // self.down > 256 or self.columns // self.across > 256:
            return "a copy moves at most 256 rows"
        if self.split > 1 and (
            self.pingpong
            or self.cluster > 8
            or self.rows * (self.columns + 4) * 4 > self.stages * (self.taken + self.columns) * 128
        ):
            return "partial sums have no room"
        return ""
