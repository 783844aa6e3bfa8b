"""A process group of one process, for tests of what only a group has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

__all__ = ["world_of_one"]


@pytest.fixture(autouse=True)
def world_of_one() -> Iterator[None]:
    """Make it for each test of the module that imports this."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
