"""A program as one rank of a larger world, alone in this process: its computing is real, its communication is
played by a table of costs.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from polyfuse.base.settings import changed_environment, environment
from polyfuse.distributed.costs import all_costs
from polyfuse.distributed.timeline import DeviceTimeline, StepTimes, Timeline
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.ranks.costs import CollectiveCosts, nearest, restored_costs, use_costs
from polyfuse.torch_compat.simulated_group import SIMULATED, simulated_groups


class PeakMemory:
    """Bytes in use at most since this was made, above what was in use then.

    Args:
        device_type: whose memory; of the host, the memory that is resident.
    """

    def __init__(self, device_type: str) -> None:
        self._device = device_of(device_type)
        self._before = self._now()

    def peak(self) -> int:
        """Bytes so far."""
        return max(0, self._now() - self._before)

    def _now(self) -> int:
        found = None if self._device.is_host else self._device.memory()
        return found.peak if found is not None else resident_peak()


def resident_peak() -> int:
    """The most bytes of this process that were in memory at once."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


@dataclass(frozen=True)
class World:
    """The world of a simulated rank.

    Attributes:
        ranks: how many there are.
        per_host: on each host.
        tables: costs that were measured, or given; more than one where groups of several sizes were measured.
        cores: of each host, as fast as those of this one; 0: as many as the ranks need.
    """

    ranks: int
    per_host: int
    tables: tuple[CollectiveCosts, ...]
    cores: int = 0

    def costs(self, ranks: int, on_host: bool) -> CollectiveCosts:
        """The table for a group: of ranks that are as near to each other, where there is one."""
        near = [table for table in self.tables if table.on_host == on_host]
        return nearest(near or self.tables, ranks)


@dataclass
class SimulatedRank:
    """The simulated rank and its world.

    Attributes:
        world: the world.
        timeline: of the rank.
        memory: of this process, or of the device that it computes on.
    """

    world: World
    timeline: Timeline | DeviceTimeline
    memory: PeakMemory

    def result(self) -> dict[str, object]:
        """Seconds and bytes, as plain data."""
        step: StepTimes = self.timeline.step()
        table = self.world.costs(self.world.ranks, self.world.ranks <= self.world.per_host)
        return {
            "ranks": self.world.ranks,
            "per_host": self.world.per_host,
            "cores": self.world.cores,
            "costs": f"{table.library} of {table.ranks} ranks" if table.library else "given",
            "steps": step.steps,
            "seconds": step.seconds,
            "computing": step.computing,
            "exposed": step.exposed,
            "communication": step.communication,
            "collectives": {kind: list(found) for kind, found in step.collectives.items()},
            "peak_bytes": self.memory.peak(),
            "flights": [asdict(flight) for flight in step.flights],
        }


@contextmanager
def simulated_rank(world: World, rank: int = 0) -> Iterator[SimulatedRank]:
    """Simulate a rank inside: `torch.distributed` finds a world of so many processes.

    Results of collectives are made of this rank's own numbers, so that losses mean nothing.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    kind = accelerator.type if accelerator is not None else "cpu"
    local = min(world.per_host, world.ranks)
    share = local / world.cores if world.cores else 0.0
    timeline: Timeline | DeviceTimeline
    if accelerator is None:
        timeline = Timeline(world.costs, world.per_host, share=share)
    else:
        device = device_of(kind)
        on_device = partial(Timeline, world.costs, world.per_host, cpu=lambda: 0.0)
        timeline = DeviceTimeline(lambda clock: on_device(clock=clock), device.event, device.synchronize)
    names = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local),
        "WORLD_SIZE": str(world.ranks),
        "LOCAL_WORLD_SIZE": str(local),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    with ExitStack() as stack:
        stack.enter_context(restored_costs())
        # the compiler overlaps by the costs of the world that is played
        for device_type in dict.fromkeys(("cpu", kind)):
            facts = device_of(device_type).facts()
            use_costs(
                CollectiveCosts(SIMULATED, facts, table.ranks, on_host, table.seconds, further=table.further)
                for table in world.tables
                for on_host in (
                    (True, False) if len({t.on_host for t in world.tables}) == 1 else (table.on_host,)
                )
            )
        stack.enter_context(changed_environment(names))
        if local > 1 and not environment("OMP_NUM_THREADS"):  # as torch's launcher does
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        stack.enter_context(simulated_groups(world.ranks, rank, timeline))
        hook = register_optimizer_step_post_hook(lambda *_: timeline.mark())
        stack.callback(hook.remove)
        memory = PeakMemory(kind)
        yield SimulatedRank(world, timeline, memory)


def measured_tables(root: Path, library: str = "") -> tuple[CollectiveCosts, ...]:
    """What was measured on this machine: of one library, that of the most tables where none is named."""
    found = all_costs(root)
    names = [table.library for table in found]
    wanted = library or max(names, key=names.count, default="")
    return tuple(table for table in found if table.library == wanted)
