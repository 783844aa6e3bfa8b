"""Which configurations of which backends are tried for one kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from autotuning import best_of
from gemm_kernels import kernels_of
from polyfuse.autotune import search as search_module
from polyfuse.autotune.candidate import BuiltProgram, CandidateProgram
from polyfuse.autotune.kernels import KernelTask
from polyfuse.autotune.search import Search, TrialRules
from polyfuse.cache.timings import Record
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Config, Source

CONFIGS = {
    "one": [Config(), Config.of(n=1), Config.of(n=2)],
    "two": [Config.of(n=1), Config.of(n=2)],
    "three": [],
}


class Writer:
    """A backend that writes a text for each configuration."""

    def __init__(self, name: str) -> None:
        self.name = name

    def emit(self, kernel: Kernel, config: Config | None) -> Source:
        return Source("kernel", f"{self.name} {config}", "text")

    def neighbours(self, kernel: Kernel, config: Config) -> list[Config]:
        return [Config.of(n=config.get("n") + 1)]


class Builder:
    def is_built(self, program: CandidateProgram) -> bool:
        return True

    def built(self, program: CandidateProgram) -> BuiltProgram:
        return BuiltProgram(program.name, ())


def tried(monkeypatch: Any, times: dict[str, float], *names: str) -> tuple[list[str], str | None]:
    (kernel,) = kernels_of(lambda x: x.sin() + 1, torch.randn(8, 16))
    tuner: Any = SimpleNamespace(
        key=lambda *_: "key",
        timer=lambda device: SimpleNamespace(name="one"),
        settings=SimpleNamespace(tune_tolerances=()),
        configs=lambda backend, kernel: CONFIGS[backend.name],
        neighbours=lambda backend, kernel, config: backend.neighbours(kernel, config),
    )

    def fake(runner: Any, problem: Any, found: list[BuiltProgram], *_: Any) -> dict[str, float]:
        return {c.name: times.get(c.name, 9.0) for c in found}

    monkeypatch.setattr(search_module, "run_trials", fake)
    task = KernelTask(tuner, kernel, [Writer(name) for name in names])  # type: ignore[misc]
    search = Search(task, Record())
    search.add(task.candidates())
    search.time(None, Builder(), TrialRules())  # type: ignore[arg-type]
    while search.widen():
        search.time(None, Builder(), TrialRules())  # type: ignore[arg-type]
    return list(map(str, search.programs)), best_of(search.record(complete=True))


def test_of_one_backend_all_configurations_are_tried(monkeypatch):
    entries, best = tried(monkeypatch, {"one": 3.0, "one n=1": 4.0, "one n=2": 2.0, "one n=3": 2.0}, "one")
    assert entries == ["one", "one n=1", "one n=2", "one n=3"] and best == "one n=2"


def test_of_several_only_of_those_that_do_well(monkeypatch):
    entries, best = tried(monkeypatch, {"one": 1.0, "two n=1": 2.0, "three": 1.05}, "one", "two", "three")
    assert entries == ["one", "two n=1", "three", "one n=1", "one n=2"] and best == "one"
    times = {"one": 1.0, "two n=1": 0.95, "two n=2": 0.5, "two n=3": 0.6, "one n=1": 0.8}
    entries, best = tried(monkeypatch, times, "one", "two")
    assert entries == ["one", "two n=1", "two n=2", "one n=1", "one n=2", "two n=3"] and best == "two n=2"
