"""Recordings that fail on CUDA, with torch's own part in it imitated: nothing is left as if it went on.

Imitated is what torch does in which order, and so what it leaves undone when something fails on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from polyfuse_cuda import graphs as cuda_graphs
from polyfuse_cuda.graphs import CudaGraphs
from requirements import HAS_GPU


class State:
    """Of a random number generator."""

    def __init__(self) -> None:
        self.recording = False


class Generator:
    def __init__(self) -> None:
        self.state = State()

    def clone_state(self) -> State:
        return State()

    def graphsafe_set_state(self, state: State) -> None:
        self.state = state


class Stream:
    def __init__(self, _: int = 0) -> None:
        self.work = ""
        self.cuda_stream = id(self)

    def wait_stream(self, other: Stream) -> None:
        assert not other.work


class Cuda:
    """The allocator, the device and what fails next."""

    def __init__(self) -> None:
        self.underway: set[Any] = set()
        self.users: Counter[Any] = Counter()
        self.default_generators = [Generator()]
        self.streams = [Stream()]
        self.fails = ""
        self.driver = True
        self.synchronized = 0
        self.pools = 0

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.streams.append(stream)
        try:
            yield
        finally:
            self.streams.pop()

    def end_pool(self, index: int, pool: Any) -> None:
        if pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def release_pool(self, index: int, pool: Any) -> None:
        self.users[pool] -= 1
        assert self.users[pool] >= 0

    def fail_if(self, where: str) -> None:
        if self.fails == where:
            self.fails = ""
            raise RuntimeError(f"failed at {where}")

    def at_rest(self) -> bool:
        """Whether nothing believes that a recording goes on, and no memory is held."""
        busy = self.underway or any(g.state.recording for g in self.default_generators)
        return not busy and not any(self.users.values()) and len(self.streams) == 1


class Graph:
    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.states: list[State] = []
        self.ended = False
        self.mine: Any = None

    def register_generator_state(self, generator: Generator) -> None:
        self.states.append(generator.state)

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "") -> None:
        assert capture_error_mode == "thread_local"
        cuda = self.cuda
        self.mine = pool or f"own pool of {id(self)}"
        self.states += [g.state for g in cuda.default_generators]
        for state in self.states:
            state.recording = True
        cuda.fail_if("before the pool")
        cuda.users[self.mine] += 1
        if self.mine in cuda.underway:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        cuda.underway.add(self.mine)
        cuda.fail_if("begin")
        assert not cuda.streams[-1].work
        cuda.streams[-1].work = "recorded"

    def capture_end(self) -> None:
        cuda = self.cuda
        stream = cuda.streams[-1]
        if not stream.work:
            raise RuntimeError("the stream is not recorded")
        if stream.work != "recorded":
            stream.work = ""
            raise RuntimeError("operation failed due to a previous error during capture")
        stream.work = ""
        cuda.end_pool(0, self.mine)
        cuda.fail_if("invalid capture")
        for state in self.states:
            state.recording = False
        self.ended = True
        cuda.fail_if("instantiate")

    def pool(self) -> Any:
        if not self.ended:
            raise RuntimeError("called without a preceding successful capture")
        return self.mine

    def reset(self) -> None:
        if self.ended:
            self.cuda.users[self.mine] -= 1
        self.ended = False

    def __del__(self) -> None:
        self.reset()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()

    def begin_again(stream: Stream) -> bool:
        if cuda.driver:
            stream.work = "recorded"
        return cuda.driver

    def synchronize(index: int) -> None:
        cuda.synchronized += 1

    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(cuda_graphs, "_begin_again", begin_again)
    for name, value in {
        "CUDAGraph": lambda: Graph(cuda),
        "Stream": Stream,
        "stream": cuda.stream,
        "device": nothing,
        "current_stream": lambda index: cuda.streams[-1],
        "current_blas_handle": lambda: 0,
        "synchronize": synchronize,
        "empty_cache": lambda: None,
        "default_generators": cuda.default_generators,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", cuda.end_pool, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", cuda.release_pool, raising=False)
    return cuda


def works(cuda: Cuda, graphs: CudaGraphs, pool: str) -> None:
    """A recording can be made, and is forgotten again."""
    graph, results = graphs.record(lambda args: args, [1, 2], pool, ())
    assert results == [1, 2]
    assert cuda.users[pool] == 1
    graph.reset()
    assert cuda.at_rest()


def wrong(cuda: Cuda) -> Any:
    def program(args: list[Any]) -> list[Any]:
        cuda.streams[-1].work = "refused"
        raise ValueError("failed at the program")

    return program


@pytest.mark.parametrize("driver", [True, False])
@pytest.mark.parametrize(
    "stage", ["before the pool", "begin", "program", "device", "unjoined", "invalid capture", "instantiate"]
)
def test_a_failure_costs_one_recording(cuda: Cuda, stage: str, driver: bool) -> None:
    cuda.driver = driver
    graphs = CudaGraphs(torch.device("cuda", 0))
    works(cuda, graphs, "first")
    state = cuda.default_generators[0].state

    def program(args: list[Any]) -> list[Any]:
        if stage in ("device", "unjoined"):
            cuda.streams[-1].work = stage
        if stage in ("program", "device"):
            raise RuntimeError(f"failed at {stage}")
        return args

    cuda.fails = stage
    before = cuda.synchronized
    with pytest.raises(RuntimeError, match="previous error" if stage == "unjoined" else f"failed at {stage}"):
        graphs.record(program, [1], "first", ())
    assert cuda.at_rest()
    # recordings made before take their seeds from this one
    assert cuda.default_generators[0].state is state
    assert cuda.synchronized > before + 1
    works(cuda, graphs, "first")
    works(cuda, graphs, "second")


def test_generators_of_the_program_leave_the_recording(cuda: Cuda) -> None:
    cuda.driver = False
    graphs = CudaGraphs(torch.device("cuda", 0))
    mine: Any = Generator()
    with pytest.raises(ValueError, match="the program"):
        graphs.record(wrong(cuda), [], "pool", (mine,))
    assert not mine.state.recording


def test_generators_that_cannot_leave_get_another_state(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.driver = False
    graphs = CudaGraphs(torch.device("cuda", 0))
    begin = Graph.capture_begin

    def once(self: Graph, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        monkeypatch.setattr(Graph, "capture_begin", refused)

    def refused(self: Graph, *args: Any, **named: Any) -> None:
        raise RuntimeError("no more recordings")

    monkeypatch.setattr(Graph, "capture_begin", once)
    with pytest.raises(ValueError, match="the program"):
        graphs.record(wrong(cuda), [], "pool", ())
    assert not cuda.default_generators[0].state.recording


def test_an_interruption_is_a_failure_like_any_other(cuda: Cuda) -> None:
    graphs = CudaGraphs(torch.device("cuda", 0))

    def program(args: list[Any]) -> list[Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        graphs.record(program, [], "pool", ())
    assert cuda.at_rest()
    works(cuda, graphs, "pool")


def test_without_a_driver_nothing_begins_again() -> None:
    if torch.cuda.is_available():
        pytest.skip(HAS_GPU)

    class Nowhere:
        cuda_stream = 0

    assert not cuda_graphs._begin_again(Nowhere())
