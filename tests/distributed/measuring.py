"""Ranks that measure what collectives cost."""

from __future__ import annotations

import json

import torch.distributed as dist

from polyfuse.distributed.measure import measure_collectives
from polyfuse.runtime.ranks.costs import costs_of


def main(rank: int, count: int, meeting: str) -> None:
    """Measure small ones, and print what all ranks hold."""
    dist.init_process_group("gloo", store=dist.FileStore(meeting, count), rank=rank, world_size=count)
    table = measure_collectives(largest=4096)
    assert costs_of("gloo", table.device, count, table.on_host) == table
    print(json.dumps(table.plain()))
    dist.destroy_process_group()
