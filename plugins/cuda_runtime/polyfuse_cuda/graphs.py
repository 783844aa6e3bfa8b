"""CUDA graphs: what records the work of CUDA devices, and torch's allocator, for recordings that are guided
to addresses. It takes the smallest free block that is large enough. What asks for more than a MiB shares one
range of addresses of a pool, if segments grow; smaller ones have another range.

A recording that fails leaves three things as if it went on: the allocator, which sends what the recording's
stream asks for to its pool; random number generators, which refuse to draw and with them every recording made
before; and the stream. `CudaGraphs` ends it on all three, so that one failure costs one recording.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from polyfuse.runtime.devices.graphs import Event, Program
from polyfuse.runtime.launching import (
    allocation_history,
    clear_workspaces,
    current_stream,
    end_allocation_to_pool,
    growing_segments,
    grows_in_ranges,
    pool_blocks,
    release_pool,
)

_MARK = 3583
"""Bytes of an allocation that stands for a call of a program: nothing else asks for as many."""


class CudaPool:
    """The memory of a pool in a recording of the current stream."""

    def __init__(self, index: int, handle: Any) -> None:
        self._index = index
        self._device = torch.device("cuda", index)
        self._handle = handle

    def blocks(self) -> list[tuple[int, int, bool]]:
        """Address and bytes of each block, and whether it is in use; by address."""
        return pool_blocks("cuda", self._index, self._handle)

    def take(self, nbytes: int) -> tuple[int, torch.UntypedStorage]:
        """Allocate."""
        storage = torch.UntypedStorage(nbytes, device=self._device)
        return storage.data_ptr(), storage


class _Watched:
    """What happened, once it is over."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.events: Sequence[Event] = ()

    def mark(self) -> None:
        """A call of the program begins."""
        torch.UntypedStorage(_MARK, device=self._device)


class CudaAllocations:
    """The allocator of one device."""

    least = (1 << 20) + 1
    step = 20 << 20

    def __init__(self, index: int) -> None:
        self._index = index

    @staticmethod
    def are_known(index: int) -> bool:
        """Whether this torch says what a pool consists of."""
        try:
            pool_blocks("cuda", index, (0, 0))
        except (RuntimeError, TypeError, KeyError, AttributeError):
            return False
        return True

    @contextmanager
    def watch(self) -> Iterator[_Watched | None]:
        """Watch what the current stream allocates. Libraries ask for their workspaces once more meanwhile, as
        they do in a recording.
        """
        stream = int(current_stream("cuda")(self._index))
        with allocation_history("cuda", self._index, stream) as history:
            if history is None:
                yield None
                return
            clear_workspaces("cuda")
            watched = _Watched(torch.device("cuda", self._index))
            yield watched
        events = []
        for allocated, address, nbytes in history:
            if nbytes != _MARK:
                events.append(Event("allocation" if allocated else "release", address, nbytes))
            elif allocated:
                events.append(Event("call"))
        watched.events = events

    def pool(self, handle: Any) -> CudaPool:
        """The memory of a pool."""
        return CudaPool(self._index, handle)


MODE = "thread_local"
"""What other threads do is no part of a recording and does not harm it."""

_DRIVER_MODE = 1  # the same, to the driver


class CudaGraphs:
    """Records the work given to one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.index = device.index or 0
        self._raw = current_stream("cuda")
        self._side: Any = None
        self._last: Any = None
        self._last_raw: int | None = None
        self._allocations: tuple[CudaAllocations | None] | None = None
        self._failed: list[Any] = []
        """Recordings that did not end: the allocator may ask them still which streams are theirs."""

    def new_pool(self) -> Any:
        """A pool of memory that recordings may share."""
        return torch.cuda.graph_pool_handle()

    def allocations(self) -> CudaAllocations | None:
        """torch's allocator, where large allocations of a pool are in one range."""
        if self._allocations is None:
            known = grows_in_ranges("cuda") and CudaAllocations.are_known(self.index)
            self._allocations = (CudaAllocations(self.index) if known else None,)
        return self._allocations[0]

    def is_recording(self) -> bool:
        """Whether somebody is recording what the current stream is given."""
        return bool(torch.cuda.is_current_stream_capturing())

    def follow(self) -> None:
        """Let the current stream wait for the one that used recorded memory last, if that is another."""
        raw = int(self._raw(self.index))
        if raw != self._last_raw:
            current = torch.cuda.current_stream(self.index)
            if self._last is not None:
                current.wait_stream(self._last)
            self._last, self._last_raw = current, raw

    def record(
        self, program: Program, args: list[Any], pool: Any, generators: Sequence[torch.Generator]
    ) -> tuple[Any, Sequence[Any]]:
        """Record `program(args)` without doing it. Returns the recording and the program's results.

        Whatever the program raises, and what the device refuses to record, is raised on. The device is as
        before then; the pool should not be recorded in again.
        """
        with torch.cuda.device(self.index):
            if self._side is None:
                self._side = torch.cuda.Stream(self.index)
            torch.cuda.current_blas_handle()  # a thread's first one cannot be made while recording
            # what earlier work needed may be needed for the pool now
            torch.cuda.synchronize(self.index)
            torch.cuda.empty_cache()
            graph = self._graph(generators)
            with self._alone(), growing_segments("cuda"):
                results = self._record(graph, program, args, pool, generators)
            torch.cuda.current_stream(self.index).wait_stream(self._side)
        return graph, results

    def _graph(self, generators: Sequence[torch.Generator]) -> Any:
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        return graph

    def _record(
        self,
        graph: Any,
        program: Program,
        args: list[Any],
        pool: Any,
        generators: Sequence[torch.Generator],
    ) -> Sequence[Any]:
        begun = False
        try:
            with torch.cuda.stream(self._side):
                graph.capture_begin(pool=pool, capture_error_mode=MODE)
                begun = True
                results = program(args)
                graph.capture_end()
        except BaseException:
            with suppress(RuntimeError):  # what happened first is what people want to know
                self._end(graph, pool, generators, begun)
                torch.cuda.synchronize(self.index)
            raise
        return results

    def _end(self, graph: Any, pool: Any, generators: Sequence[torch.Generator], begun: bool) -> None:
        """End a recording that failed, whatever it was that failed."""
        with torch.cuda.stream(self._side), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing was recorded
            # one that the device refused is over, for the device; another one begun instead can be ended
            if begun and (_ended(graph) or (_begin_again(self._side) and _ended(graph))):
                graph.reset()
                return
        self._failed.append(graph)
        with suppress(RuntimeError):
            end_allocation_to_pool("cuda", self.index, pool)
            begun = True
        graph.reset()
        if begun:
            with suppress(RuntimeError):
                release_pool("cuda", self.index, pool)
        self._side = torch.cuda.Stream(self.index)
        self._restore(generators)

    def _restore(self, generators: Sequence[torch.Generator]) -> None:
        """Let generators leave a recording that was not ended, by having them take part in one that is."""
        graph = self._graph(generators)
        try:
            with torch.cuda.stream(self._side), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph.capture_begin(capture_error_mode=MODE)
                graph.capture_end()
        except RuntimeError:
            # recordings made before stay with the old states: they cannot be helped, what comes can
            for generator in (torch.cuda.default_generators[self.index], *generators):
                generator.graphsafe_set_state(generator.clone_state())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Without what must not happen meanwhile: tensors collected, workspaces cached in the pool."""
        collecting = gc.isenabled()
        gc.disable()
        clear_workspaces("cuda")
        try:
            yield
        finally:
            clear_workspaces("cuda")
            if collecting:
                gc.enable()


def _ended(graph: Any) -> bool:
    """End a recording; whether torch has done all that belongs to it."""
    with suppress(RuntimeError):
        graph.capture_end()
        return True
    with suppress(RuntimeError):
        graph.pool()  # known once all is done but making it ready for replays
        return True
    return False


def _begin_again(stream: Any) -> bool:
    """Have the device record what a stream is given, without torch's knowledge."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        begin = driver.cuStreamBeginCapture_v2
    except (OSError, AttributeError):
        return False
    return int(begin(ctypes.c_void_p(stream.cuda_stream), ctypes.c_int(_DRIVER_MODE))) == 0
