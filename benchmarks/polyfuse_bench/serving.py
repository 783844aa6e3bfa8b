"""The start of a serving process, taken apart: from its first instruction to its second answer, with caches
that an earlier process filled.

Reported is the CPU time of each part, of the process and all that it starts, with one thread: it depends
little on what else the machine does. Candidates alternate.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["CANDIDATES", "NETWORKS", "PACKAGE", "PARTS", "measure", "serving_row", "total"]

NETWORKS = ("llama", "bert", "swin", "mamba")

PACKAGE = "package"
"""Compiled ahead of time: neither the model nor `transformers` is there."""

CANDIDATES = ("eager", "dynamo", "inductor", "polyfuse", "polyfuse:captures", PACKAGE)
"""Who is compared: `dynamo` is what `torch.compile` takes by itself, whatever the backend."""

PARTS = ("interpreter", "import torch", "import polyfuse", "model", "first answer", "second answer")


class _Clock:
    """Notes what each part took, one after another."""

    def __init__(self) -> None:
        self._cpu, self._wall = 0.0, time.perf_counter()
        self.parts: dict[str, dict[str, float]] = {}

    def note(self, part: str) -> None:
        cpu, wall = cpu_seconds(), time.perf_counter()
        self.parts[part] = {"cpu": cpu - self._cpu, "wall": wall - self._wall}
        self._cpu, self._wall = cpu, wall


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """What each part took, in this fresh process; with `task["fill"]`, what later processes find is made."""
    clock, backend = _Clock(), task["backend"]
    clock.note("interpreter")
    import torch

    clock.note("import torch")
    if backend in ("polyfuse", "polyfuse:captures", PACKAGE):
        import polyfuse.backend  # noqa: F401 (else `torch.compile` imports it)
    clock.note("import polyfuse")
    if backend != PACKAGE:
        call = _compiled(task)
    elif task["fill"]:
        return _package(task)
    else:
        call = _loaded(task)
    clock.note("model")
    with torch.no_grad():
        for part in ("first answer", "second answer"):
            call()
            clock.note(part)
    return {"parts": clock.parts, "lowered": _lowered(backend)}


def _lowered(backend: str) -> int:
    """Graphs that this process compiled, rather than found."""
    if not backend.startswith("polyfuse"):
        return 0
    from polyfuse import metrics

    found = metrics()
    return found.cache_misses + sum(found.cache_bypasses.values())


def _compiled(task: Mapping[str, Any]) -> Callable[[], Any]:
    from polyfuse_bench.backends import compiled

    prepared = _prepared(task)
    made: list[Any] = []

    def call() -> Any:
        # what imports a backend belongs to the answer, whichever backend it is
        if not made:
            made.append(compiled(prepared.model, task["backend"]))
        return made[0](**prepared.inputs)

    return call


def _package(task: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    from polyfuse import aot
    from polyfuse_bench.models import flatten_outputs

    class Flat(torch.nn.Module):
        """Its results are tensors: the classes of others would have to be imported to hold them."""

        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(flatten_outputs(self.model(**inputs)))

    prepared = _prepared(task)
    aot.package(Flat(prepared.model), (), prepared.inputs, path=task["package"])
    torch.save(prepared.inputs, f"{task['package']}.inputs")
    return {"parts": {}}


def _loaded(task: Mapping[str, Any]) -> Callable[[], Any]:
    import torch

    from polyfuse import aot

    run, inputs = aot.load(task["package"]), torch.load(f"{task['package']}.inputs")
    return lambda: run(**inputs)


def _prepared(task: Mapping[str, Any]) -> Any:
    from polyfuse_bench.models import Size, family, prepare

    if task["name"] == "mamba":
        from polyfuse_bench.models.recurrent import MAMBA as found
    else:
        found = family(task["name"])
    return prepare(found, Size(task["size"]))


def cpu_seconds() -> float:
    """CPU time of this process, of those it waited for, and of those that it started and that run."""
    own = sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    return own + sum(_running(os.getpid()))


def _running(parent: int) -> list[float]:
    """CPU time of each process below one, with what it waited for."""
    found = []
    for child in _children(parent):
        try:
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        found.append(sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"))
        found += _running(child)
    return found


def _children(parent: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue
    return found


def serving_row(
    task: Mapping[str, Any], backends: Sequence[str], repeats: int, cache: str = ""
) -> dict[str, Any]:
    """The parts of starts of one network by each candidate, as many as `repeats`, and what failed.

    Every candidate starts once beforehand, and fills the caches; those that filled the folder `cache` in an
    earlier run do not. `"work"` counts what the others did again: graphs that Polyfuse lowered, and
    libraries that were built.
    """
    from polyfuse_bench.backends import cache_environment
    from polyfuse_bench.child import ChildFailed, run_child
    from polyfuse_bench.compile_time import keep_byte_code

    keep_byte_code()
    samples: dict[str, list[Any]] = {}
    work: dict[str, dict[str, int]] = {}
    failures: dict[str, str] = {}
    with _folder(cache, f"{task['name']}-{task['size']}") as folder:
        environment = {**cache_environment(folder), "OMP_NUM_THREADS": "1"}
        own = {**task, "package": str(folder / "model.pf")}
        for round_ in range(repeats + 1):
            for backend in backends:
                filled = folder / f"filled {backend}"
                if backend in failures or (not round_ and filled.exists()):
                    continue
                before = _libraries(folder)
                try:
                    answer = run_child(
                        {**own, "backend": backend, "fill": not round_}, environment=environment
                    )
                except ChildFailed as failure:
                    failures[backend] = str(failure)
                    continue
                if round_:
                    samples.setdefault(backend, []).append(answer["parts"])
                    done = work.setdefault(backend, {"lowered": 0, "built": 0})
                    done["lowered"] += answer["lowered"]
                    done["built"] += len(_libraries(folder) - before)
                else:
                    filled.touch()
    row = {"name": task["name"], "size": task["size"], "starts": samples}
    return {**row, "work": work, "failures": failures}


@contextlib.contextmanager
def _folder(cache: str, name: str) -> Iterator[Path]:
    """A folder for the caches of one network: below a folder that stays, or a temporary one."""
    if cache:
        folder = Path(cache).absolute() / name
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    else:
        with tempfile.TemporaryDirectory(prefix="polyfuse-bench-") as temporary:
            yield Path(temporary)


def _libraries(folder: Path) -> set[Path]:
    """Libraries of kernels in the caches."""
    return set(folder.rglob("*.so"))


def total(starts: Sequence[Mapping[str, Mapping[str, float]]], parts: Sequence[str] = PARTS) -> float:
    """The median over starts of the CPU time of some parts, in seconds."""
    return statistics.median(sum(start[part]["cpu"] for part in parts) for start in starts)
