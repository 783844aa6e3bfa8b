"""Process groups of a simulated world, of which this process is the only real rank: each
collective is done with this rank's own numbers, as if all ranks held the same, and whoever simulates the
network is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from polyfuse.torch_compat.tracing.dynamo import disable

SIMULATED = "simulated"
"""The name of the library that does these collectives."""


class Network(Protocol):
    """Who plays the network."""

    def start(self, op: str, nbytes: int, ranks: Sequence[int], on_host: bool) -> Any:
        """A collective begins: its name, bytes of the larger of what it reads and writes, and the ranks of
        its group in the world; `on_host`: whether its tensors are in the host's memory.
        """

    def wait(self, started: Any) -> None:
        """The program waits for what `start` returned."""

    def paused(self) -> AbstractContextManager[None]:
        """What happens inside is not the program's."""


def _untraced(kind: type) -> type:
    """A class whose methods Dynamo does not compile when torch calls them in a compiled function."""
    for name, found in list(vars(kind).items()):
        if inspect.isfunction(found) and name != "__init__":
            setattr(kind, name, disable(found, reason="the network is played"))
    return kind


@_untraced
class _Started(dist._Work):
    """A collective that was started."""

    def __init__(self, network: Network, started: Any, results: list[torch.Tensor]) -> None:
        super().__init__()
        self._network, self._started = network, started
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(results)
        self._waited = False

    def is_completed(self) -> bool:
        return True

    def wait(self, timeout: Any = None) -> bool:
        if not self._waited:
            self._waited = True
            self._network.wait(self._started)
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        # who reduces gradients waits for the future, unseen, at the end of the backward
        if not self._waited:
            try:
                torch.autograd.Variable._execution_engine.queue_callback(self.wait)
            except RuntimeError:  # outside of one
                self.wait()
        return self._future


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@_untraced
class _Group(dist.ProcessGroup):
    """A group of which this process is one of several ranks."""

    def __init__(
        self, rank: int, size: int, network: Network, members: Callable[[Any], Sequence[int]]
    ) -> None:
        super().__init__(rank, size)
        self._own, self._count = rank, size
        self._network, self._members = network, members

    def getBackendName(self) -> str:
        return SIMULATED

    @property
    def pg_name(self) -> str:
        """The name under which the process knows the group."""
        return str(dist.distributed_c10d._world.pg_names[self])

    group_name = pg_name

    def _start(self, op: str, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> _Started:
        tensors = [*given, *made]
        on_host = all(t.device.type == "cpu" for t in tensors)
        nbytes = max(_bytes(given), _bytes(made))
        started = self._network.start(op, nbytes, self._members(self), on_host)
        return _Started(self._network, started, list(made) or list(given))

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> _Started:
        return self._start("all_reduce", tensors, ())

    allreduce_coalesced = allreduce
    reduce = allreduce

    def broadcast(self, tensors: list[torch.Tensor], options: Any = None) -> _Started:
        return self._start("broadcast", tensors, ())

    def barrier(self, *options: Any, **named: Any) -> _Started:
        return self._start("all_reduce", (), ())

    def allgather(
        self, results: list[list[torch.Tensor]], tensors: list[torch.Tensor], options: Any = None
    ) -> _Started:
        with self._network.paused():
            for parts, own in zip(results, tensors, strict=True):
                for part in parts:
                    part.copy_(own)
        return self._start("all_gather", tensors, [part for parts in results for part in parts])

    def gather(
        self, results: list[list[torch.Tensor]], tensors: list[torch.Tensor], options: Any = None
    ) -> _Started:
        return self.allgather(results, tensors) if results else self._start("all_gather", tensors, ())

    def _allgather_base(self, result: torch.Tensor, own: torch.Tensor, options: Any = None) -> _Started:
        return self.allgather_into_tensor_coalesced([result], [own])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, results: list[torch.Tensor], tensors: list[torch.Tensor], options: Any = None
    ) -> _Started:
        with self._network.paused():
            for result, own in zip(results, tensors, strict=True):
                # it may be a part of the result
                result.view(self._count, -1).copy_(own.reshape(1, -1).clone())
        return self._start("all_gather", tensors, results)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def reduce_scatter(
        self, results: list[torch.Tensor], tensors: list[list[torch.Tensor]], options: Any = None
    ) -> _Started:
        with self._network.paused():
            for result, parts in zip(results, tensors, strict=True):
                result.copy_(parts[self._own])
        return self._start("reduce_scatter", [part for parts in tensors for part in parts], results)

    def scatter(
        self, results: list[torch.Tensor], tensors: list[list[torch.Tensor]], options: Any = None
    ) -> _Started:
        with self._network.paused():
            for result, parts in zip(results, tensors, strict=False):
                result.copy_(parts[self._own])
        return self._start("broadcast", [part for parts in tensors for part in parts], results)

    def _reduce_scatter_base(
        self, result: torch.Tensor, given: torch.Tensor, options: Any = None
    ) -> _Started:
        return self.reduce_scatter_tensor_coalesced([result], [given])

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(
        self, results: list[torch.Tensor], tensors: list[torch.Tensor], options: Any = None
    ) -> _Started:
        with self._network.paused():
            for result, given in zip(results, tensors, strict=True):
                result.view(-1).copy_(given.reshape(self._count, -1)[self._own].clone())
        return self._start("reduce_scatter", tensors, results)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def alltoall(
        self, results: list[torch.Tensor], tensors: list[torch.Tensor], options: Any = None
    ) -> _Started:
        with self._network.paused():
            for result, own in zip(results, tensors, strict=True):
                _fill(result, own)
        return self._start("all_to_all", tensors, results)

    def all_to_all_single(
        self, result: torch.Tensor, own: torch.Tensor, given: list[int], taken: list[int], options: Any = None
    ) -> _Started:
        with self._network.paused():
            _fill(result, own)
        return self._start("all_to_all", [own], [result])

    alltoall_base = all_to_all_single

    def send(self, tensors: list[torch.Tensor], receiver: int, tag: int) -> _Started:
        return self._start("send", tensors, ())

    def recv(self, tensors: list[torch.Tensor], sender: int, tag: int) -> _Started:
        with self._network.paused():
            for tensor in tensors:
                tensor.zero_()
        return self._start("send", (), tensors)

    recv_anysource = recv


def _fill(result: torch.Tensor, own: torch.Tensor) -> None:
    """Fill a tensor with the numbers of another one, from the start and as often as needed."""
    count = own.numel()
    flat = result.view(-1)
    if not count or not flat.numel():
        flat.zero_()
        return
    indices = torch.arange(flat.numel(), device=flat.device) % count
    flat.copy_(own.reshape(-1)[indices])


@contextmanager
def simulated_groups(world: int, rank: int, network: Network) -> Iterator[None]:
    """Make this process one of so many ranks, in every group that is made meanwhile.

    What starts or ends the world for the program does nothing, and groups with any library are simulated.
    """
    inside: Any = dist.distributed_c10d
    helper, begin, end = (
        inside._new_process_group_helper,
        inside.init_process_group,
        inside.destroy_process_group,
    )

    def members(group: Any) -> Sequence[int]:
        ranks: Sequence[int] = dist.get_process_group_ranks(group)
        return ranks

    def create(store: Any, own: int, size: int, timeout: Any) -> _Group:
        return _Group(own, size, network, members)

    def simulated_helper(
        size: int, own: int, ranks: Any, backend: Any, store: Any, *rest: Any, **named: Any
    ) -> Any:
        named.pop("backend_options", None)
        return helper(size, own, ranks, SIMULATED, store, *rest, **named)

    def nothing(*args: Any, **named: Any) -> None:
        pass

    if SIMULATED in dist.Backend.backend_list:
        dist.Backend._plugins.pop(SIMULATED.upper(), None)
        dist.Backend.backend_list.remove(SIMULATED)
    dist.Backend.register_backend(SIMULATED, create, devices=["cpu", "cuda", "xpu"])
    begin(SIMULATED, store=dist.HashStore(), rank=rank, world_size=world)
    inside._new_process_group_helper = simulated_helper
    for module in (inside, dist):
        module.init_process_group = module.destroy_process_group = nothing
    try:
        yield
    finally:
        inside._new_process_group_helper = helper
        for module in (inside, dist):
            module.init_process_group, module.destroy_process_group = begin, end
        end()
