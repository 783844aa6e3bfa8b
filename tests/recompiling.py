"""A process that recompiles small functions so many times: each has constants and shapes of its own, which
come back after FRESH others, when kernels are found in the store and libraries are loaded again. What torch
keeps of compiled functions is reset every 40, as in a program that would reach the limit of recompilations.

Usage: recompiling.py COUNT [FRESH [EVERY]]. Every EVERY recompilations garbage is collected (between them, as
Python does by itself), and a line of JSON says what the process holds; at the end `right`, if each result was
eager mode's.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable

import torch

Function = Callable[[torch.Tensor], torch.Tensor]
KINDS: tuple[Callable[[torch.Tensor, float], torch.Tensor], ...] = (
    lambda x, n: x * n + 1,
    lambda x, n: torch.softmax(x * n, -1) + n,
    lambda x, n: (x - n).abs().sum(0),
    lambda x, n: torch.where(x > n, x.exp(), x @ x.t() @ x),
)
BETWEEN_RESETS = 40


def recompile(number: int, fresh: int) -> None:
    """Compile function `number` and compare it with eager mode; of every eighth the gradient as well."""
    own = number % fresh
    kind, constant, gradient = KINDS[own % len(KINDS)], 1.0 + own / 64, own % 8 == 1

    def f(x: torch.Tensor) -> torch.Tensor:
        return kind(x, constant)

    if number % BETWEEN_RESETS == 0:
        torch.compiler.reset()
    options = {"strict": True, "graph_cache": number // fresh % 2 == 0}
    compiled = torch.compile(f, backend="polyfuse", dynamic=False, options=options)
    results = []
    x = torch.rand(3 + own % 17, 30)
    for run in (compiled, f):
        leaf = x.clone().requires_grad_(gradient)
        result = run(leaf)
        if gradient:
            (slope,) = torch.autograd.grad(result, leaf, torch.ones_like(result))
            result = torch.stack((result.detach(), slope))
        results.append(result)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def held() -> dict[str, int]:
    """Regions of memory, MiB in use, open files, threads, built libraries, objects of Python's collector."""
    with open("/proc/self/maps") as lines:
        regions = [line.split() for line in lines]
    with open("/proc/self/statm") as line:
        resident = int(line.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    return {
        "regions": len(regions),
        "mebibytes": resident >> 20,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "libraries": len({row[5] for row in regions if len(row) > 5 and "/kernels/" in row[5]}),
        "objects": len(gc.get_objects()),
    }


def main() -> None:
    count, fresh, every = map(int, (*sys.argv[1:], *("600", "100")[len(sys.argv) - 2 :]))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 2 * BETWEEN_RESETS
    torch._dynamo.config.accumulated_recompile_limit = 2 * BETWEEN_RESETS
    start = time.monotonic()
    for number in range(count):
        recompile(number, fresh)
        if (number + 1) % every == 0:
            gc.collect()
            line = {"recompilations": number + 1, "seconds": round(time.monotonic() - start), **held()}
            print(json.dumps(line), flush=True)
    print("right")


if __name__ == "__main__":
    main()
