"""Each test on a device begins with the same state, whatever became of the one before."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
import torch
from polyfuse_bench.alarm import limited

from polyfuse.base.log import reset_warned
from polyfuse.compiler.reports.report import reset_reports
from polyfuse.runtime.graphs.memory import forget_graph_memory
from requirements import CLUSTERS, HOPPER, TWO_GPUS

_lost: list[str] = []
"""The test after which the device did not answer any more, if there was one."""


SECONDS = 90
"""That a test may take, unless its module says otherwise under this name. One that hangs, since a compiler or
a device does not answer, costs only itself.
"""


@pytest.fixture(scope="session")
def two_gpus() -> None:
    """Skips what asks for it where there are fewer."""
    if torch.cuda.device_count() < 2:
        pytest.skip(TWO_GPUS)


@pytest.fixture(scope="session")
def hopper() -> None:
    """Skips what asks for it where the GPU is another one."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip(HOPPER)


@pytest.fixture(scope="session")
def starts_clusters() -> None:
    """Skips what asks for it where the GPU starts no clusters of programs."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip(CLUSTERS)


@pytest.fixture(autouse=True)
def ends_in_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that takes too long fails, unless it says that it is slow."""
    if request.node.get_closest_marker("slow") is not None or not hasattr(signal, "setitimer"):
        yield
        return

    seconds = getattr(request.module, "SECONDS", SECONDS)
    with limited(seconds, lambda: pytest.fail(f"it took longer than {seconds} seconds", pytrace=True)):
        yield


@pytest.fixture(autouse=True)
def same_state(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing compiled, recorded or warned of before; the same seed, 0 or the module's SEED; nothing running.

    After an illegal access the driver refuses all further work of the process: the test that made it fails,
    and those behind it are skipped with the reason.
    """
    if _lost:
        pytest.skip(f"the device was lost in {_lost[0]}")
    _begin(getattr(request.module, "SEED", 0))
    yield
    torch._dynamo.reset()
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        _lost.append(request.node.nodeid)
        pytest.fail(f"the device was lost: {str(error).splitlines()[0]}", pytrace=False)
    gc.collect()
    torch.cuda.empty_cache()


def _begin(seed: int) -> None:
    torch._dynamo.reset()
    reset_reports()
    reset_warned()
    for index in range(torch.cuda.device_count()):
        forget_graph_memory(f"cuda:{index}")
    torch.use_deterministic_algorithms(False)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.cuda.set_device(0)
    torch.cuda.set_stream(torch.cuda.default_stream())
    torch.cuda.set_sync_debug_mode("default")
    torch.manual_seed(seed)
