"""Throughput of one model for several callers at once, each a thread of one process that calls without pause.

All work of torch has one thread a caller, as `OMP_NUM_THREADS=1` says; OpenVINO has its mode for throughput,
with as many threads as there are cores, and each caller a request of its own.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyfuse_bench.backends import EAGER, FREEZING, ONNXRUNTIME, OPENVINO, POLYFUSE
from polyfuse_bench.child import first_line
from polyfuse_bench.engines import NETWORKS as OF_ENGINES
from polyfuse_bench.engines import engine, openvino_requests
from polyfuse_bench.models import Prepared, Size, prepare
from polyfuse_bench.models.family import Family, Inputs
from polyfuse_bench.packaged import FROZEN_PACKAGE
from polyfuse_bench.tensors import relative_error
from polyfuse_bench.turns import turn

__all__ = ["CALLERS", "CANDIDATES", "NETWORKS", "SECONDS", "measure", "rate"]

CALLERS = (1, 2, 4, 8)

CANDIDATES = (
    *(EAGER, OPENVINO, ONNXRUNTIME),
    *(POLYFUSE, f"{POLYFUSE}:{FREEZING}", f"{POLYFUSE}:{FROZEN_PACKAGE}"),
)
"""Who is compared unless the command line says otherwise."""

SECONDS = 0.6
"""How long the callers of one sample begin calls."""

_LAYERS, _WIDTH, _ROWS = 24, 64, 4
_WARM_CALLS = 3


def _chain(size: Size) -> nn.Module:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()) for _ in range(size.pick(_LAYERS, 2)))
    )


def _rows(model: nn.Module, size: Size, batch: int, seq: int) -> Inputs:
    return {"input": torch.randn(batch * _ROWS, _WIDTH)}


CHAIN = Family("chain", "mlp", _chain, _rows)
"""Small layers one after another: what surrounds a call counts most."""

NETWORKS: Mapping[str, Family] = {
    "chain": CHAIN,
    **{name: OF_ENGINES[name] for name in ("mobilenet_v2", "resnet50", "bert")},
}


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """Calls a second of `task["name"]` by `task["backends"]`: for each number of callers and round."""
    rates: dict[str, dict[str, list[float]]] = {}
    errors: dict[str, float] = {}
    failures: dict[str, str] = {}
    calls: dict[str, Callable[[], Any]] = {}
    prepared = prepare(NETWORKS[task["name"]], Size(task["size"]), batch=1)
    with tempfile.TemporaryDirectory(prefix="polyfuse-bench-") as folder, torch.no_grad():
        expected = engine(prepared, EAGER, Path(folder))()
        for name in task["backends"]:
            try:
                call = _caller(prepared, name, Path(folder))
                found = [call() for _ in range(_WARM_CALLS)][-1]
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {first_line(error)}"
                continue
            calls[name] = call
            errors[name] = relative_error(found, expected)
        with turn():
            for _ in range(task["rounds"]):
                for name, call in calls.items():
                    for count in task["callers"]:
                        found = rates.setdefault(name, {}).setdefault(str(count), [])
                        found.append(calls_a_second(call, count, task["seconds"]))
    return {
        "name": task["name"],
        "size": task["size"],
        "rates": rates,
        "errors": errors,
        "failures": failures,
    }


def _caller(prepared: Prepared, name: str, folder: Path) -> Callable[[], Any]:
    """A call that several threads may make at once."""
    if name != OPENVINO:
        return engine(prepared, name, folder)
    new, own = openvino_requests(prepared), threading.local()

    def call() -> Any:
        if not hasattr(own, "request"):
            own.request = new()
        return own.request()

    return call


def calls_a_second(call: Callable[[], Any], callers: int, seconds: float) -> float:
    """Finished calls of so many threads, which begin none after so many seconds, over the time of all."""
    counts = [0] * callers
    ready = threading.Barrier(callers + 1)

    def run(number: int) -> None:
        with torch.no_grad():
            call()
            ready.wait()
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                call()
                counts[number] += 1

    threads = [threading.Thread(target=run, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def rate(samples: Sequence[float]) -> float:
    """The median over rounds."""
    return statistics.median(samples)
