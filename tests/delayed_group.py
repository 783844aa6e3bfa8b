"""A process group for tests in one process: it plays several ranks that all hold the same, and does its work
only when somebody waits for it. What was written over in between shows as wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

NAME = "polyfuse_delayed"

RANKS = 2

UNFINISHED = 113.0
"""What a result holds before it is waited for."""


class _Later(dist._Work):
    """Work that is done by `wait`."""

    def __init__(self, group: DelayedGroup, what: str, do: Callable[[], None]) -> None:
        super().__init__()
        self.group, self.what, self.do = group, what, do
        self.waited = False
        self.future: torch.futures.Future[Any] = torch.futures.Future()

    def is_completed(self) -> bool:
        return self.waited

    def wait(self, timeout: Any = None) -> bool:
        if not self.waited:
            self.waited = True
            self.do()
            self.group.log.append(f"wait {self.what}")
            self.future.set_result([])
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self.future


class DelayedGroup(dist.ProcessGroup):
    """See above. `log` says what was started and waited for, in order; messages come from `mail`, which has
    those that this process sent.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.ranks = size
        self.log: list[str] = []
        self.mail: list[list[torch.Tensor]] = []

    @property
    def pg_name(self) -> str:
        """The name under which the process knows the group."""
        return str(dist.distributed_c10d._world.pg_names[self])

    group_name = pg_name

    def getBackendName(self) -> str:
        return NAME

    def _start(self, what: str, results: list[torch.Tensor], do: Callable[[], None]) -> _Later:
        self.log.append(f"start {what}")
        for result in results:
            result.fill_(UNFINISHED)
        return _Later(self, what, do)

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> _Later:
        given = [t.clone() for t in tensors]

        def do() -> None:
            for tensor, value in zip(tensors, given, strict=True):
                tensor.copy_(value * self.ranks)

        return self._start("all_reduce", tensors, do)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[torch.Tensor], options: Any = None) -> _Later:
        given = [t.clone() for t in tensors]

        def do() -> None:
            for tensor, value in zip(tensors, given, strict=True):
                tensor.copy_(value)

        return self._start("broadcast", tensors, do)

    def _allgather_base(self, result: torch.Tensor, tensor: torch.Tensor, options: Any = None) -> _Later:
        return self._gather("all_gather", [result], [tensor])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, results: list[torch.Tensor], tensors: list[torch.Tensor], options: Any = None
    ) -> _Later:
        return self._gather("all_gather_coalesced", results, tensors)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def _gather(self, what: str, results: list[torch.Tensor], tensors: list[torch.Tensor]) -> _Later:
        def do() -> None:
            for result, tensor in zip(results, tensors, strict=True):
                result.copy_(torch.cat([tensor.reshape(-1)] * self.ranks).view_as(result))

        return self._start(what, results, do)

    def _reduce_scatter_base(self, result: torch.Tensor, tensor: torch.Tensor, options: Any = None) -> _Later:
        return self._scatter("reduce_scatter", [result], [tensor])

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(
        self, results: list[torch.Tensor], tensors: list[torch.Tensor], options: Any = None
    ) -> _Later:
        return self._scatter("reduce_scatter_coalesced", results, tensors)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def _scatter(self, what: str, results: list[torch.Tensor], tensors: list[torch.Tensor]) -> _Later:
        def do() -> None:
            for result, tensor in zip(results, tensors, strict=True):
                own = tensor.reshape(-1).chunk(self.ranks)[self.rank()]
                result.copy_((own * self.ranks).view_as(result))

        return self._start(what, results, do)

    def all_to_all_single(
        self, result: torch.Tensor, tensor: torch.Tensor, given: list[int], taken: list[int], options: Any
    ) -> _Later:
        def do() -> None:
            own = tensor.chunk(self.ranks)[self.rank()]
            result.copy_(torch.cat([own] * self.ranks).view_as(result))

        return self._start("all_to_all", [result], do)

    alltoall_base = all_to_all_single

    def send(self, tensors: list[torch.Tensor], receiver: int, tag: int) -> _Later:
        def do() -> None:
            self.mail.append([tensor.clone() for tensor in tensors])

        return self._start("send", [], do)

    def recv(self, tensors: list[torch.Tensor], sender: int, tag: int) -> _Later:
        def do() -> None:
            for tensor, value in zip(tensors, self.mail.pop(), strict=True):
                tensor.copy_(value)

        return self._start("receive", tensors, do)


def _create(store: Any, rank: int, size: int, timeout: Any) -> DelayedGroup:
    return DelayedGroup(rank, size)


def start() -> DelayedGroup:
    """Make such a group the default one of this process."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, devices=["cpu", "cuda"])
    dist.init_process_group(NAME, store=dist.HashStore(), rank=0, world_size=RANKS)
    group = dist.group.WORLD
    assert isinstance(group, DelayedGroup)
    return group


def stop() -> None:
    """Leave it."""
    dist.destroy_process_group()
