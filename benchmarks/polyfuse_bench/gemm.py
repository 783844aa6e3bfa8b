"""Matmuls on an accelerator, with what usually follows them: is the chosen one the fastest?

What is timed is the device's work alone: a long matmul keeps the device busy while the calls are handed to
it, so that they then run back to back. Arguments change from call to call, so that none finds its operands in
the device's cache because it has just run.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from polyfuse_bench.backends import EAGER, INDUCTOR, POLYFUSE, compiled
from polyfuse_bench.child import first_line
from polyfuse_bench.devices import CPU
from polyfuse_bench.gemm_cases import CASES, Tensors
from polyfuse_bench.tensors import relative_error
from polyfuse_bench.timing import Effort, Timing

MODE = "max-autotune-no-cudagraphs"
CANDIDATES = (EAGER, f"{INDUCTOR}:{MODE}", f"{POLYFUSE}:{MODE}")
"""Who is compared unless the command line says otherwise: the compilers choose among implementations."""

CALLS = 16
"""Most calls of a sample, each with arguments of its own."""
_LONG_SECONDS = 4e-3
"""Of calls that together take longer than this, fewer make a sample."""
_BLOCKER = 8192


class Row:
    """A case that was compiled by each candidate.

    Attributes:
        case, task: what is measured, and how.
        calls: the candidates that can compute it.
        first_calls: seconds of each compiler's first call, in which it compiles and chooses.
        chosen: what Polyfuse chose.
        peer_chosen: who computes the matmul in Inductor's code.
        failures: of candidates that cannot compute it.
    """

    def __init__(self, task: Mapping[str, Any]) -> None:
        self.task, self.case = task, CASES[task["name"]]
        self.calls: dict[str, Callable[..., torch.Tensor]] = {}
        self.first_calls: dict[str, float] = {}
        self.chosen: list[str] = []
        self.peer_chosen = ""
        self.failures: dict[str, str] = {}
        (arguments,) = self._arguments(1)
        for name in task["backends"]:
            call = compiled(_copied(self.case.function(task["dtype"])), name)
            began = time.perf_counter()
            try:
                with torch.no_grad():
                    call(*arguments)
            except Exception as error:
                self.failures[name] = f"{type(error).__name__}: {first_line(error)}"
                continue
            self.calls[name] = call
            if name != EAGER:
                self.first_calls[name] = time.perf_counter() - began
            if name.partition(":")[0] == POLYFUSE:
                self.chosen = _chosen()
            elif name.partition(":")[0] == INDUCTOR:
                self.peer_chosen = _chosen_by_inductor()
        del arguments
        _give_back(task["device"])

    def measure(self) -> dict[str, Any]:
        """Times and errors, as a row of a result file."""
        case, task = self.case, self.task
        torch.manual_seed(0)
        arguments = self._arguments(CALLS + 1)
        with torch.no_grad():
            results = {name: call(*arguments[0]) for name, call in self.calls.items()}
            expected = results.pop(EAGER, None)
            errors = {} if expected is None else {n: relative_error(r, expected) for n, r in results.items()}
            del results, expected
            timings = device_times(self.calls, arguments, task["device"], Effort(**task["effort"]))
        del arguments
        _give_back(task["device"])
        return {
            "name": case.name,
            "dtype": task["dtype"],
            "flop": 2 * case.batch * case.rows * case.inner * case.outer,
            "timings": [dataclasses.asdict(timing) for timing in timings],
            "chosen": self.chosen,
            "peer_chosen": self.peer_chosen,
            "first_calls": self.first_calls,
            "errors": errors,
            "failures": self.failures,
        }

    def _arguments(self, most: int) -> list[Tensors]:
        return self.case.arguments(self.task["dtype"], self.task["device"], most)


prepared = Row
"""What a process that compiles ahead keeps of a task."""


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `task["name"]` for `task["backends"]`."""
    return Row(task).measure()


def _give_back(device: str) -> None:
    """Give the device its memory back, for other processes use it too."""
    if device != CPU:
        torch.get_device_module(device).empty_cache()


def _copied(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function like this one of which no compiler knows anything."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_COPIES)}")
    return FunctionType(code, function.__globals__)


_COPIES = itertools.count()


def _chosen() -> list[str]:
    """What computes the graph compiled last: what was chosen, and the launches and calls."""
    from polyfuse.compiler.reports.report import last_reports

    reports = last_reports()
    if not reports:
        return []
    report = reports[-1]
    picked = [f"{d.first} -> {d.second}" for d in report.decisions if d.kind in ("choice", "tune")]
    return [*picked, *(f"{one.backend} {one.kernel}" for one in report.launches), *report.calls]


def _chosen_by_inductor() -> str:
    """Who computes the matmul in the code that was loaded last."""
    from torch._inductor.codecache import PyCodeCache

    written = [module.__file__ for module in PyCodeCache.modules if module.__file__]
    texts = (Path(name).read_text() for name in reversed(written))
    program = next((text for text in texts if "async_compile" in text and "def call(" in text), "")
    signs = {"cutlass": "async_compile.cuda(", "triton": "triton_tem_", "library": "extern_kernels."}
    return next((name for name, sign in signs.items() if sign in program), "loops" if program else "")


def device_times(
    calls: Mapping[str, Callable[..., Any]],
    arguments: Sequence[Tensors],
    device: str,
    effort: Effort,
) -> list[Timing]:
    """Seconds of device time a call takes, in interleaved rounds."""
    module = torch.get_device_module(device)
    big = torch.randn(_BLOCKER, _BLOCKER, device=device).to(torch.bfloat16)

    def sample(call: Callable[..., Any], count: int) -> float:
        begin, end = (module.Event(enable_timing=True) for _ in range(2))
        for _ in range(2):
            torch.mm(big, big)
        begin.record()
        for turn in range(count):
            call(*arguments[turn % len(arguments)])
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / count * 1e-3

    samples: dict[str, list[float]] = {name: [] for name in calls}
    longest = max((sample(call, 2) for call in calls.values()), default=0.0)
    count = max(2, min(CALLS, int(_LONG_SECONDS / max(longest, 1e-9))))
    names = list(calls)
    for turn in range(effort.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            samples[name].append(sample(calls[name], count))
    return [
        Timing(name, statistics.median(v), min(v), max(v), min(v), len(v), count)
        for name, v in samples.items()
    ]
