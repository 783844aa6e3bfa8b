"""In how many chunks a matmul and the collective beside it take least time, by estimates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from polyfuse.base.settings import Settings
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.ranks.estimates import collective_seconds, further_seconds, known_seconds
from polyfuse.torch_compat.tracing import fake, shapes

CHUNKS: Final = (2, 4, 8)
"""How many there may be."""

_CHUNK: Final = 170e-6
"""Seconds that each further chunk takes where the table of measured costs does not say it: one more message
to start and wait for, one more matmul. Two H100s, bf16, Llama blocks of 8B shapes: 162 to 174 us, forward.
"""
_LEAST: Final = 0.1
"""Share of the shorter of the two that a gain must be: estimates are not better than that."""


@dataclass(frozen=True)
class Work:
    """A collective and the matmuls beside it.

    Attributes:
        op, group: the collective's operator, and the name of its group.
        device: where all of it is.
        nbytes: of the larger of what the collective reads and writes.
        operations: additions and multiplications of the matmuls.
        copied: bytes that are read and written in addition where there are chunks.
    """

    op: str
    group: str
    device: torch.device
    nbytes: float
    operations: float
    copied: float


@dataclass(frozen=True)
class Chunking:
    """What is expected of chunks.

    Attributes:
        chunks: how many.
        usual, exposed: seconds of communication beside which nothing computes, whole and in `chunks`.
    """

    chunks: int
    usual: float
    exposed: float


def best_chunking(work: Work, settings: Settings, possible: Sequence[int]) -> Chunking | None:
    """Into how many chunks the work is cut; None: it stays whole.

    What the option `chunk_collectives` names is done. Else only what was measured, or the option
    `network_bandwidth`, decides, so that ranks with equal tables and devices decide alike; and nothing is cut
    on a device of few processors, which carry the messages themselves.

    Args:
        possible: numbers of chunks that there may be.
    """
    if settings.chunk_collectives == "off":
        return None
    bandwidth = settings.network_bandwidth * 1e6
    device = str(work.device)
    properties = device_of(work.device.type).properties(work.device.index or 0)
    multiplying = work.operations / properties.operations
    further = (0.0 if bandwidth else further_seconds(work.group, device)) or _CHUNK

    def message(share: int) -> float:
        return collective_seconds(work.op, work.nbytes / share, work.group, device, bandwidth)

    def chunked(chunks: int) -> Chunking:
        each, part = message(chunks), multiplying / chunks
        # the first or the last message has nothing beside it; others wait for the matmul, or it for them
        return Chunking(chunks, message(1), each + (chunks - 1) * max(0.0, each - part))

    def more(found: Chunking) -> float:
        return found.exposed + (found.chunks - 1) * further + work.copied / properties.bandwidth

    if settings.chunk_collectives != "auto":
        chunks = int(settings.chunk_collectives)
        return chunked(chunks) if chunks in possible else None
    if not properties.units:
        return None
    if not bandwidth and known_seconds(work.op, work.nbytes, work.group, device) is None:
        return None
    best = min(map(chunked, possible), key=more, default=None)
    if best is None or best.usual - more(best) < _LEAST * min(best.usual, multiplying):
        return None
    return best


def numbers_of(values: Sequence[torch.Tensor]) -> Callable[[object], float]:
    """The number that a size is in the example inputs."""
    env = fake.shape_env_of(fake.detect_fake_mode(list(values)))
    return lambda size: float(shapes.hint(env, size, 1))
