"""Measuring what collectives cost, by all processes of a group together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.cache import writable_root
from polyfuse.distributed.costs import write_costs
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.ranks.costs import KINDS, CollectiveCosts, use_costs
from polyfuse.torch_compat.groups import Group, group_of, processes_of_host, start_sum, wait_for

SMALLEST: Final = 1 << 10
LARGEST: Final = 256 << 20
"""Bytes of the smallest and the largest collective that is measured."""

_STEP: Final = 4
_FEWEST, _MOST = 3, 20
_FURTHER: Final = 8
"""Messages behind the first one, of which one's share of the time is measured."""
_LONG: Final = 0.2
"""Seconds of one kind and size; what takes longer is measured as often as is least."""
_TOO_LONG: Final = 2.0
"""Seconds of one collective after which larger ones are not tried."""


def measure_collectives(
    group: Any = None, *, largest: int = LARGEST, device_type: str = "", settings: Settings | None = None
) -> CollectiveCosts:
    """Measure each kind of collective of a group in sizes from 1 KiB on, use that in this process from now
    on, and keep it in the cache folder for later ones.

    All processes of the group call it at the same time. It takes some seconds, and memory of twice the
    largest size on the device.

    Args:
        group: of `torch.distributed`; None: the world.
        largest: bytes of the largest one; a kind ends early where one takes longer than two seconds.
        device_type: whose tensors are sent, such as `cpu`; empty: the accelerator's where the group serves
            it, else the CPU's.
        settings: options, of which the cache folder matters; None: those of the environment.

    Returns:
        The slowest process's seconds, the same on all ranks.

    Raises:
        UnsupportedError: there are no other processes.
    """
    known = group_of() if group is None else group_of(str(group.group_name))
    if known is None or len(known.ranks) < 2:
        raise UnsupportedError(
            "there is no other process to measure collectives with",
            "start two or more with torchrun, and call torch.distributed.init_process_group first",
        )
    kind = device_type or _device_type(known)
    rows = {name: list(_measured(name, known, kind, largest)) for name in KINDS}
    table = CollectiveCosts(
        known.library(kind),
        device_of(kind).facts(),
        len(known.ranks),
        known.is_on_one_host(processes_of_host()),
        {name: tuple((n, seconds) for n, seconds, _ in found) for name, found in rows.items()},
        {name: tuple((n, cpu) for n, _, cpu in found) for name, found in rows.items()},
        _further(known, kind),
    )
    use_costs([table])
    root = writable_root(settings or Settings.resolve())
    if root is not None:
        write_costs(root, table)
    return table


def _device_type(group: Group) -> str:
    """The accelerator's where a group serves it, else the CPU."""
    found = torch.accelerator.current_accelerator(check_available=True)
    served = found is not None and f"{found.type}:" in group.libraries
    return found.type if found is not None and served else "cpu"


def _measured(kind: str, group: Group, device_type: str, largest: int) -> Iterator[tuple[int, float, float]]:
    """Bytes, seconds, and CPU seconds of a rank, of one kind."""
    nbytes = SMALLEST
    while nbytes <= largest:
        call, exact = _collective(kind, group, device_type, nbytes)
        seconds, cpu = _seconds_behind(call, group, device_type)
        yield exact, seconds, cpu
        if seconds > _TOO_LONG:
            return
        nbytes *= _STEP


def _further(group: Group, device_type: str) -> float:
    """Seconds that each further message takes which a small matmul waits for, sent as graphs send it."""
    operand, name = torch.zeros(16, 16, device=device_type), str(group.handle.group_name)

    def messages(count: int) -> None:
        started = [start_sum(operand, name) for _ in range(count)]
        for message in started:
            torch.mm(wait_for(message), operand)

    one, many = (_seconds(partial(messages, n), group, device_type)[0] for n in (1, 1 + _FURTHER))
    return max(0.0, many - one) / _FURTHER


def _seconds_behind(call: Callable[[], object], group: Group, device_type: str) -> tuple[float, float]:
    """Of one collective, as `_seconds`. A device is given several, of which the first one shows how long it
    takes to come to them, and to say that they are done: programs do not wait for that.
    """
    one = _seconds(call, group, device_type)
    if device_of(device_type).is_host or one[0] > _LONG:
        return one

    def several() -> None:
        for _ in range(1 + _FURTHER):
            call()

    many = _seconds(several, group, device_type)
    return max(0.0, many[0] - one[0]) / _FURTHER, max(0.0, many[1] - one[1]) / _FURTHER


def _seconds(call: Callable[[], object], group: Group, device_type: str) -> tuple[float, float]:
    """Of one call on the slowest rank: the least of several, as many on each, since what else the
    machines do can only add to a time. And the CPU seconds of a rank, by the mean of all.
    """
    wait = device_of(device_type).synchronize
    first = torch.zeros(1, dtype=torch.float64, device=device_type)

    def once() -> tuple[float, float]:
        dist.barrier(group.handle)
        begun, cpu = time.perf_counter(), time.process_time()
        call()
        wait()
        return time.perf_counter() - begun, time.process_time() - cpu

    once()
    first[0] = once()[0]
    dist.all_reduce(first, dist.ReduceOp.MAX, group.handle)
    times = max(_FEWEST, min(_MOST, int(_LONG / max(1e-9, float(first)))))
    measured = [once() for _ in range(times)]
    least = min(seconds for seconds, _ in measured)
    used = sum(cpu for _, cpu in measured) / times / len(group.ranks)
    taken, cpus = (torch.tensor([n], dtype=torch.float64).to(device_type) for n in (least, used))
    dist.all_reduce(taken, dist.ReduceOp.MAX, group.handle)
    dist.all_reduce(cpus, dist.ReduceOp.SUM, group.handle)
    return float(taken), float(cpus)


def _collective(kind: str, group: Group, device_type: str, nbytes: int) -> tuple[Callable[[], object], int]:
    """One collective, and the bytes of the larger of what it reads and writes."""
    ranks, handle = len(group.ranks), group.handle
    part = max(1, nbytes // 4 // ranks)
    whole = torch.zeros(part * ranks, device=device_type)
    own = torch.zeros(part, device=device_type)
    # torch 2.13 calls them otherwise
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=handle),
        "all_gather": lambda: gather(whole, own, group=handle),
        "reduce_scatter": lambda: scatter(own, whole, group=handle),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole, group=handle),
        "broadcast": lambda: dist.broadcast(whole, group.ranks[0], group=handle),
        "send": lambda: _pass_on(whole, group),
    }
    return calls[kind], whole.nbytes


def _pass_on(value: torch.Tensor, group: Group) -> None:
    """Each process with an even position sends to the next one."""
    position = group.ranks.index(dist.get_rank())
    if position % 2:
        dist.recv(value, group.ranks[position - 1], group=group.handle)
    elif position + 1 < len(group.ranks):
        dist.send(value, group.ranks[position + 1], group=group.handle)
