"""Recording what a device is given to do, to launch it again as one: CUDA graphs; and the storage of tensors.

`TorchGraphs` is the real thing behind `polyfuse.runtime.graph_device.GraphDevice`. The functions beside it
deal with memory whose owner is not a tensor: a recording writes to the same addresses whoever holds tensors
there.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

__all__ = [
    "TorchGraphs",
    "backward_may_repeat",
    "copy_all",
    "forbid_access",
    "graphs_of",
    "outside_inference",
    "same_addresses",
    "step_number",
    "storage_at",
    "storage_use",
    "unsafe_to_record",
]

Program = Callable[[list[Any]], Sequence[Any]]


class TorchGraphs:
    """Records the work given to one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.index = device.index or 0
        self._side: Any = None
        self._last: Any = None
        self._last_raw: int | None = None

    def new_pool(self) -> Any:
        """A pool of memory that recordings may share."""
        return torch.cuda.graph_pool_handle()

    def is_recording(self) -> bool:
        """Whether somebody is recording what the current stream is given."""
        return torch.cuda.is_current_stream_capturing()

    def follow(self) -> None:
        """Let the current stream wait for the one that used recorded memory last, if that is another."""
        raw = int(torch._C._cuda_getCurrentRawStream(self.index))
        if raw != self._last_raw:
            current = torch.cuda.current_stream(self.index)
            if self._last is not None:
                current.wait_stream(self._last)
            self._last, self._last_raw = current, raw

    def record(
        self, program: Program, args: list[Any], pool: Any, generators: Sequence[torch.Generator]
    ) -> tuple[Any, Sequence[Any]]:
        """Record `program(args)` without doing it. Returns the recording and the program's results.

        Whatever the program raises, and what the device refuses to record, is raised on.
        """
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.device(self.index):
            if self._side is None:
                self._side = torch.cuda.Stream(self.index)
            torch.cuda.current_blas_handle()  # a thread's first one cannot be made while recording
            # what earlier work needed may be needed for the pool now
            torch.cuda.synchronize(self.index)
            torch.cuda.empty_cache()
            with self._alone():
                results = self._record(graph, program, args, pool)
            torch.cuda.current_stream(self.index).wait_stream(self._side)
        return graph, results

    def _record(self, graph: Any, program: Program, args: list[Any], pool: Any) -> Sequence[Any]:
        with torch.cuda.stream(self._side):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                results = program(args)
            except BaseException:
                self._abandon(graph)
                raise
            try:
                graph.capture_end()
            except BaseException:
                self._restore_generator()
                raise
        return results

    def _abandon(self, graph: Any) -> None:
        """End a recording that failed; it ends with an error, which says no more than that."""
        try:
            graph.capture_end()
        except Exception:
            self._restore_generator()

    def _restore_generator(self) -> None:
        """A recording that does not end well leaves the generator believing that it goes on."""
        generator = torch.cuda.default_generators[self.index]
        generator.graphsafe_set_state(generator.clone_state())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Without what must not happen meanwhile: tensors collected, workspaces kept in the pool."""
        collecting = gc.isenabled()
        gc.disable()
        torch._C._cuda_clearCublasWorkspaces()
        try:
            yield
        finally:
            torch._C._cuda_clearCublasWorkspaces()
            if collecting:
                gc.enable()


def graphs_of(device: str) -> TorchGraphs | None:
    """What records the work of a device, if torch can do that."""
    where = torch.device(device)
    if where.type != "cuda" or not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device() if where.index is None else where.index
    return TorchGraphs(torch.device(where.type, index))


def unsafe_to_record(op: Any) -> bool:
    """Whether an operator's author says that it must not be recorded."""
    tag = getattr(torch.Tag, "cudagraph_unsafe", None)
    return tag is not None and tag in getattr(op, "tags", ())


def step_number() -> int:
    """How often `torch.compiler.cudagraph_mark_step_begin` was called.

    torch counts in a module that it loads for the first such call, so that until then there is nothing to
    read.
    """
    module = sys.modules.get("torch._inductor.cudagraph_trees")
    return abs(module.MarkStepBox.mark_step_counter) if module is not None else 0


@contextmanager
def outside_inference() -> Iterator[None]:
    """For tensors that outlive the call: neither inference tensors nor part of a derivative."""
    with torch.inference_mode(False), torch.no_grad():
        yield


storage_use: Callable[[int], int] = torch._C._storage_Use_Count
"""How many hold the storage whose `_cdata` is the argument: tensors, and Python's own object for it."""


def storage_at(address: int, nbytes: int, device: torch.device) -> torch.UntypedStorage:
    """A storage at a place in memory that somebody else owns."""
    storage: torch.UntypedStorage = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
    return storage


def forbid_access(storage: torch.UntypedStorage, tensor: torch.Tensor, message: str) -> None:
    """Make every use of `tensor`'s storage an error, as far as this torch can do that."""
    by_storage = getattr(torch._C, "_set_storage_data_ptr_access_error_msg", None)
    if by_storage is not None:
        by_storage(storage._cdata, message)
    else:
        torch._C._set_throw_on_mutable_data_ptr(tensor)


def _same_addresses(args: list[Any], addresses: list[int], positions: list[int]) -> bool:
    return all(args[i].data_ptr() == p for i, p in zip(positions, addresses, strict=True))


same_addresses: Callable[[list[Any], list[int], list[int]], bool] = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", _same_addresses
)
"""`(args, addresses, positions) -> bool`: whether the tensors at `positions` begin at `addresses`. Older
torches take lists alone."""


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy many tensors at once; no derivative knows of it."""
    if torch.is_grad_enabled():
        with torch.no_grad():
            copy_all(targets, sources)
    elif len(targets) == 1:
        targets[0].copy_(sources[0])
    elif targets:
        torch._foreach_copy_(list(targets), list(sources))


def backward_may_repeat() -> bool:
    """Whether what the forward saved for the running backward is kept for another one."""
    kept = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return kept is None or bool(kept())
