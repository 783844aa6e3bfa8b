"""A process that lives for long: it compiles, compiles again, calls from several threads, packages and loads,
and trims the cache and forgets, in random order, for so many seconds, or so many steps (`6steps`). Prints
`begins`; at the end a line of counts, what it held after a quarter and at the end, as JSON, and `right` if
each result was eager mode's.

With a last argument `beside` it disturbs another one on the same folder, and measures nothing.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from polyfuse import aot
from polyfuse.base.folders import cache_root
from polyfuse.base.settings import Settings
from polyfuse.cache.limit import trim
from polyfuse.compiler.session import forget_sessions
from polyfuse.workers import pool

Function = Callable[[torch.Tensor], torch.Tensor]
KINDS: tuple[Callable[[torch.Tensor, float], torch.Tensor], ...] = (
    lambda x, n: torch.softmax(x * n, -1) + n,
    lambda x, n: (x.cumsum(0) / n).tanh() * x.amax(1, keepdim=True),
    lambda x, n: torch.nn.functional.layer_norm(x @ x.t() + n, x.shape[:1]),
    lambda x, n: torch.where(x > 0, x.exp() + n, x.sum(0)).to(torch.float64),
)


class Soak:
    """One life, by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.compiled: list[tuple[Function, Function]] = []

    def step(self) -> None:
        """Do one thing."""
        (name,) = self.rng.choices(tuple(ACTIONS), weights=tuple(ACTIONS.values()))
        getattr(self, name)()
        self.done[name] += 1

    def compile(self) -> None:
        """A function that is new, or was compiled before, if not by this process by another one."""
        kind, number = self.rng.choice(KINDS), float(self.rng.randrange(1, 400))

        def f(x: torch.Tensor) -> torch.Tensor:
            return kind(x, number)

        options = self.rng.choice(({}, {"native_host": True}, {"graph_cache": False}))
        dynamic = self.rng.choice((None, True, False))
        run = torch.compile(f, backend="polyfuse", dynamic=dynamic, options={"strict": True, **options})
        self.check(f, run)
        self.compiled = [*self.compiled[-3:], (f, run)]

    def call(self) -> None:
        """What was compiled, from several threads."""
        failures: list[BaseException] = []

        def called(f: Function, run: Function) -> None:
            try:
                self.check(f, run)
            except BaseException as error:
                failures.append(error)

        running = [threading.Thread(target=called, args=pair) for pair in self.compiled for _ in range(3)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        if failures:
            raise failures[0]

    def check(self, f: Function, run: Function) -> None:
        """Compare a call with eager mode."""
        x = torch.randn(5, 30)
        torch.testing.assert_close(run(x), f(x), rtol=1e-4, atol=1e-5)

    def package(self) -> None:
        """Write a package, load it, call it."""
        model = torch.nn.Sequential(torch.nn.Linear(6, 5 + self.rng.randrange(8)), torch.nn.GELU()).eval()
        x = torch.randn(3, 6)
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            path = Path(folder) / "model.pf"
            aot.package(model, (x,), path=str(path))
            torch.testing.assert_close(aot.load(str(path), verify=True)(x), model(x), rtol=1e-4, atol=1e-5)

    def forget(self) -> None:
        """What torch and Polyfuse hold of compiled functions."""
        torch.compiler.reset()
        forget_sessions()
        self.compiled = []

    def trim(self) -> None:
        """Nearly all that is stored."""
        trim(cache_root(Settings()), self.rng.randrange(1 << 20), spared=0.0)


ACTIONS = {"compile": 10, "call": 6, "package": 1, "forget": 2, "trim": 1}


def held() -> dict[str, int]:
    """Regions of memory, bytes in use, open files, threads, built libraries."""
    torch.compiler.reset()
    forget_sessions()
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("polyfuse-build"):  # of sessions that are forgotten: they end by themselves
            thread.join(60)
    with open("/proc/self/maps") as lines:
        regions = [line.split() for line in lines]
    with open("/proc/self/statm") as line:
        resident = int(line.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    libraries = {
        row[5] for row in regions if len(row) > 5 and row[5].endswith(".so") and "/kernels/" in row[5]
    }
    return {
        "regions": len(regions),
        "bytes": resident,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "libraries": len(libraries),
    }


def main() -> None:
    amount, seed, alone = sys.argv[1], int(sys.argv[2]), "beside" not in sys.argv
    counted = amount.endswith("steps")
    limit = float(amount.removesuffix("steps"))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 1000
    pool._REMEMBERED = 16
    print("begins", flush=True)
    soak, start, measured = Soak(seed), time.monotonic(), []
    for name in ACTIONS if not counted else ():  # each once, so that what is loaded once is
        getattr(soak, name)()
    soak.compile()
    passed = 0.0
    while passed < 1.0:
        soak.step()
        passed = (soak.done.total() if counted else time.monotonic() - start) / limit
        if alone and passed > 0.25 * (1 + len(measured)):
            measured.append(held())
            print(f"after {100 * passed:.0f} %: {measured[-1]}", flush=True)
    print(dict(soak.done))
    if alone:
        print(json.dumps([measured[0] if measured else held(), held()]))
    print("right")


if __name__ == "__main__":
    main()
