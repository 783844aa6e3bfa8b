"""What became of recording a program. Who records none imports nothing else of this package."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class GraphStatus:
    """What became of recording one program.

    Attributes:
        refused: why it is not recorded at all; empty if it is.
        recordings: how many were made.
        replays: calls that were replays.
        plain: calls that ran as they are.
        reason: why the last of those was not a replay, once something was recorded.
        again: why the last recording but the first for its sizes was made.
        partitions: what became of them, where it is recorded in partitions.
    """

    refused: str = ""
    recordings: int = 0
    replays: int = 0
    plain: int = 0
    reason: str = ""
    again: str = ""
    partitions: list[GraphStatus] = field(default_factory=list)

    def text(self) -> str:
        """One line for people."""
        if self.refused:
            parts = "".join(f"; partition {i} is {part.text()}" for i, part in enumerate(self.partitions))
            return f"not recorded{' as a whole' if parts else ''}: {self.refused}{parts}"
        counts = f"recorded {self.recordings} times, {self.replays} calls replayed, {self.plain} not"
        if self.reason:
            counts += f"; the last of these: {self.reason}"
        return f"{counts}; recorded anew: {self.again}" if self.again else counts
