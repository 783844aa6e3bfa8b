"""Groups of processes: who is in them, how far they have come, and the store that they share."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from polyfuse.base.settings import environment


class SharedStore:
    """Text under keys that all processes of a group see. Nothing here waits for another process."""

    def __init__(self, store: Any) -> None:
        self._store = store

    @property
    def patience(self) -> float:
        """Seconds after which torch gives up waiting for another process."""
        timeout = self._store.timeout
        return timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)

    def put(self, key: str, content: str | bytes) -> None:
        """Write a text or some bytes, over what was there before. Torch's stores end the connection of a
        process that writes more than eight mebibytes at once.
        """
        self._store.set(f"polyfuse/{key}", content)

    def find(self, key: str) -> str | None:
        """The text under a key, None while there is none."""
        found = self.find_bytes(key)
        return None if found is None else found.decode()

    def find_bytes(self, key: str) -> bytes | None:
        """What is under a key, None while there is nothing."""
        name = f"polyfuse/{key}"
        return bytes(self._store.get(name)) if self._store.check([name]) else None

    def claim(self, key: str, text: str) -> str:
        """Write a text that is not empty where nothing is yet, and return what is there then."""
        return bytes(self._store.compare_set(f"polyfuse/{key}", "", text)).decode()

    def add(self, key: str, amount: int) -> int:
        """Add to a number that starts with 0, and return the sum."""
        return int(self._store.add(f"polyfuse/{key}", amount))


@dataclass(frozen=True)
class Group:
    """A group of processes that this one belongs to.

    Attributes:
        name: under which collectives know it.
        ranks: of its processes in the world, in the group's order.
        store: theirs; None where processes share none, as in simulations.
    """

    name: str
    ranks: tuple[int, ...]
    store: SharedStore | None
    handle: Any

    def library(self, device_type: str) -> str:
        """What carries out collectives of tensors on a kind of device, such as `"nccl"`."""
        try:
            return str(self.handle._get_backend(torch.device(device_type)).name()).lower()
        except RuntimeError:
            # a group that is one library itself, as those written in Python are
            return str(self.handle.name()).lower()

    @property
    def libraries(self) -> str:
        """The same for all kinds of devices, as text."""
        return str(_distributed().get_backend_config(self.handle))

    def is_on_one_host(self, per_host: int) -> bool:
        """Whether all its processes are on one host, and those of each group like it, so that all ranks say
        the same.

        Args:
            per_host: processes that were started on each host, in the order of their ranks; 0: not known.
        """
        step = self.ranks[1] - self.ranks[0] if len(self.ranks) > 1 else 1
        if per_host < 1 or step < 1 or self.ranks != tuple(range(self.ranks[0], self.ranks[-1] + 1, step)):
            return False
        return per_host % (step * len(self.ranks)) == 0

    def position(self) -> int:
        """How many collectives this process has started in the group; -1 where the group does not count."""
        try:
            return int(self.handle._get_sequence_number_for_group())
        except RuntimeError:
            return -1


def this_rank() -> int:
    """The rank of this process in the world; -1 where there is no world of several processes."""
    dist = _distributed()
    return dist.get_rank() if dist is not None and dist.get_world_size() > 1 else -1


def processes_of_host() -> int:
    """How many processes torch's launcher started on each host; 0: not known."""
    text = environment("LOCAL_WORLD_SIZE")
    return int(text) if text.isdigit() else 0


def group_names() -> tuple[str, ...]:
    """The names of all groups of this process, that of the world first."""
    dist = _distributed()
    if dist is None:
        return ()
    members = [group for group in dist.distributed_c10d._world.pg_map if isinstance(group, dist.ProcessGroup)]
    return tuple(dict.fromkeys(str(g.group_name) for g in (dist.group.WORLD, *members)))


def symmetric_groups(how: str = "sums") -> tuple[str, ...]:
    """The names of the groups of this process with torch's symmetric memory.

    Args:
        how: the option `symmetric_memory`: `off` none, `sums` those for which the program enabled it, `host`
            also groups of GPUs of this host, for which it is enabled here. That waits for nobody.
    """
    if how == "host":
        _enable_on_this_host()
    module: Any = sys.modules.get("torch.distributed._symmetric_memory")
    if module is None or how == "off":  # who did not import it enabled nothing
        return ()
    return tuple(name for name in group_names() if module.is_symm_mem_enabled_for_group(name))


def _enable_on_this_host() -> None:
    """Enable symmetric memory for groups of several processes that are all on one host. All ranks find the
    same ones."""
    per_host, names = processes_of_host(), list[str]()
    for group in filter(None, map(group_of, group_names())):
        shared = group.store is not None and len(group.ranks) > 1 and group.is_on_one_host(per_host)
        if shared and group.library("cuda") == "nccl":
            names.append(group.name)
    if not names:
        return
    from torch.distributed import _symmetric_memory

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 says that nobody need enable a group
        for name in names:
            _symmetric_memory.enable_symm_mem_for_group(name)


def group_of(name: str = "") -> Group | None:
    """The group of a name, or the world; None where this process is in none of that name."""
    dist = _distributed()
    if dist is None:
        return None
    inside = dist.distributed_c10d
    try:
        handle = inside._resolve_process_group(name) if name else dist.group.WORLD
        ranks = tuple(dist.get_process_group_ranks(handle))
        store = inside._world.pg_map[handle][1]
    except (KeyError, LookupError, RuntimeError, ValueError):
        return None
    return Group(str(handle.group_name), ranks, _shared(dist, store), handle)


def _distributed() -> Any:
    """`torch.distributed` where processes have met, else None."""
    dist: Any = torch.distributed
    return dist if dist.is_available() and dist.is_initialized() else None


def _shared(dist: Any, store: Any) -> SharedStore | None:
    """A store as one that several processes see; None where it lies in this process's memory."""
    inner = store
    while isinstance(inner, dist.PrefixStore):
        inner = inner.underlying_store
    known = tuple(getattr(dist, name) for name in ("TCPStore", "FileStore") if hasattr(dist, name))
    return SharedStore(store) if isinstance(inner, known) else None


def start_sum(tensor: torch.Tensor, group: str) -> torch.Tensor:
    """Start an all-reduce as captured graphs do; `wait_for` its result."""
    found: torch.Tensor = torch.ops._c10d_functional.all_reduce(tensor, "sum", group)
    return found


def wait_for(result: torch.Tensor) -> torch.Tensor:
    """The result of a collective once it is there."""
    found: torch.Tensor = torch.ops._c10d_functional.wait_tensor(result)
    return found
