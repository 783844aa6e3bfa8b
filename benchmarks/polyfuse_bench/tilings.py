"""Is the short list of tilings of the Hopper kernel short of a fast one? All are built and timed.

A row waits for its own kernels; those of later rows are compiled meanwhile. That does not disturb the times,
which are the device's alone, with work queued ahead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from polyfuse.base.settings import Settings
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from polyfuse.ir.types import DType, from_torch
from polyfuse.plugin import Config
from polyfuse_bench.child import first_line
from polyfuse_bench.gemm import CALLS, device_times
from polyfuse_bench.gemm_cases import CASES, Case, Tensors
from polyfuse_bench.tensors import relative_error
from polyfuse_bench.timing import Effort
from polyfuse_cutlass.backend import CutlassBackend
from polyfuse_cutlass.space import every_config

_ROUGH, _FINE = Effort(rounds=2), Effort(rounds=11)
_NEAR = 1.15
"""Times the fastest after two rounds, up to which a tiling is timed with care."""
_TOLERATED = 2e-2

Launch = Callable[..., object]


class Search:
    """The tilings of some matmuls, in compilation from the beginning.

    Attributes:
        names: the matmuls, those with the fewest tilings first.
    """

    def __init__(self, names: Sequence[str], dtype: str, device: str, folder: Path) -> None:
        self._dtype, self._device, self._folder = dtype, device, folder
        self._backend = CutlassBackend(Settings.resolve(None, {}))
        operands = from_torch(getattr(torch, dtype))
        if operands is None:
            raise SystemExit(f"kernels do not compute in {dtype}: choose bfloat16 or float16 with --dtype")
        self._kernels = {name: gemm_kernel(CASES[name], operands) for name in names}
        every = {name: every_config(kernel, self._backend.target) for name, kernel in self._kernels.items()}
        self.names = sorted(names, key=lambda name: len(every[name]))
        self._pool = ThreadPoolExecutor(os.cpu_count())
        self._launches: dict[str, dict[Config, Future[Launch]]] = {
            name: {config: self._pool.submit(self._built, name, config) for config in every[name]}
            for name in self.names
        }

    def measure(self, name: str) -> dict[str, Any]:
        """Seconds of the fastest tiling of all, of the fastest offered, and of the first guess; no times
        where that one fails.
        """
        case = CASES[name]
        calls: dict[str, Launch] = {}
        failures: dict[str, str] = {}
        arguments = self._arguments(case)
        wanted = _result(case, arguments[0])
        for config, future in self._launches.pop(name).items():
            try:
                calls[str(config)] = launch = future.result()
                # what the one before has written is no result of this one
                arguments[0][-1].fill_(float("nan"))
                launch(*arguments[0])
                error = relative_error(arguments[0][-1], wanted)
                if error > _TOLERATED:
                    raise ValueError(f"its results are off by {error:.1e}")
            except Exception as fault:
                calls.pop(str(config), None)
                failures[str(config)] = f"{type(fault).__name__}: {first_line(fault)}"
        offered = [str(config) for config in self._backend.configs(self._kernels[name])]
        row = {"name": name, "dtype": self._dtype, "tilings": len(calls), "failures": failures}
        if offered[0] not in calls:
            return row
        return {**row, **least_times(calls, offered, arguments, self._device)}

    def close(self) -> None:
        """Forget what nobody waits for any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _built(self, name: str, config: Config) -> Launch:
        source = self._backend.emit(self._kernels[name], config)
        folder = self._folder / source.key
        folder.mkdir(parents=True, exist_ok=True)
        self._backend.build([source], folder)
        return self._backend.load(folder)[source.key]

    def _arguments(self, case: Case) -> list[Tensors]:
        torch.manual_seed(0)
        given = case.arguments(self._dtype, self._device, CALLS + 1)
        return [(one[0].flatten(), one[1].flatten(), torch.empty_like(one[3]).flatten()) for one in given]


def least_times(
    calls: Mapping[str, Launch], offered: Sequence[str], arguments: Sequence[Tensors], device: str
) -> dict[str, Any]:
    """Seconds of the fastest of all, of the fastest of those that are offered, and of the first of these."""
    times = {t.name: t.best for t in device_times(calls, arguments, device, _ROUGH)}
    # the fastest that is offered always takes part
    limit = max(_NEAR * min(times.values()), min(times[name] for name in offered if name in times))
    near = {name: calls[name] for name in times if times[name] <= limit or name == offered[0]}
    times = {t.name: t.median for t in device_times(near, arguments, device, _FINE)}
    listed = {name: times[name] for name in offered if name in times}
    best, of_list = (min(some, key=lambda name: some[name]) for some in (times, listed))
    return {
        "best": times[best],
        "best_tiling": best,
        "offered": listed[of_list],
        "offered_tiling": of_list,
        "first": listed[offered[0]],
    }


def gemm_kernel(case: Case, dtype: DType) -> Kernel:
    """The kernel of a plain matmul, operands along the depth as a linear layer has them."""
    m, n, k, count = case.rows, case.outer, case.inner, case.batch
    batch = f"b0{{{count}}} ~ {count}, " if count > 1 else ""
    at = {
        name: f"{size}*b0 + {index}" if count > 1 else index
        for name, size, index in (
            ("x", m * k, f"{k}*i0 + r0"),
            ("y", n * k, f"{k}*i1 + r0"),
            ("z", m * n, f"{n}*i0 + i1"),
        )
    }
    operand = dtype.name
    found = parse(f"""kernel matmul on cuda {{
numerics fast
axes {batch}i0{{{m}}} ~ {m}, i1{{{n}}} ~ {n}
raxes r0{{{k}}} ~ {k}
in in0: {operand}[{count * m * k}] aligned
in in1: {operand}[{count * n * k}] aligned
out out0: {operand}[{count * m * n}] aligned
loop {{
  x = load {operand} in0[{at["x"]}]
  y = load {operand} in1[{at["y"]}]
  matmul = reduce f32 dot (x, y)
}}
once {{
  rounded = cast {operand} (matmul)
  store {operand} set out0[{at["z"]}] = rounded
}}
}}""")
    assert isinstance(found, Kernel)
    return found


def _result(case: Case, one: Tensors) -> torch.Tensor:
    left = one[0].view(case.batch, case.rows, case.inner)
    right = one[1].view(case.batch, case.outer, case.inner)
    return (left @ right.mT).flatten()
