"""How long a collective of a group takes, by what is known here."""

from __future__ import annotations

from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.ranks.costs import CollectiveCosts, any_costs, costs_of, kind_of
from polyfuse.torch_compat.groups import group_of, processes_of_host


def collective_seconds(op: str, nbytes: float, group: str, device: str, bandwidth: float) -> float:
    """Seconds of a collective on a device.

    Args:
        op: the operator, such as ``_c10d_functional.all_reduce``.
        nbytes: of the larger of what it reads and writes.
        group: its name.
        device: such as ``cuda:0``.
        bandwidth: bytes that the network moves in a second; 0: as was measured in a world like this one
            (`CollectiveCosts`), else over the network that the device knows of, within a host where all
            processes of the group are on one.
    """
    measured = None if bandwidth else known_seconds(op, nbytes, group, device)
    if measured is not None:
        return measured
    found = group_of(group)
    ranks = len(found.ranks) if found is not None else 0
    on_host = found is not None and found.is_on_one_host(processes_of_host())
    return device_of(device).collective_seconds(op, int(nbytes), bandwidth, ranks, on_host)


def known_seconds(op: str, nbytes: float, group: str, device: str) -> float | None:
    """The same by what was measured alone; None where nothing was."""
    found = _measured(group, device)
    return None if found is None else found[0].of(kind_of(op), nbytes, found[1])


def further_seconds(group: str, device: str) -> float:
    """What each further message takes which a matmul waits for, as it was measured; 0 where it was not."""
    found = _measured(group, device)
    return found[0].further if found is not None else 0.0


def _measured(group: str, device: str) -> tuple[CollectiveCosts, int] | None:
    """The table that says most of a group, and the number of its processes."""
    found = group_of(group) if any_costs() else None
    if found is None:
        return None
    kind, ranks = device.partition(":")[0], len(found.ranks)
    on_host = found.is_on_one_host(processes_of_host())
    table = costs_of(found.library(kind), device_of(kind).facts(), ranks, on_host)
    return None if table is None else (table, ranks)
