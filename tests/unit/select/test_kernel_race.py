"""Which configurations of which backends are tried for one kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from polyfuse.cache.timings import Measured
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Config, Source
from polyfuse.select import heat as heat_module
from polyfuse.select.contest import Rules
from polyfuse.select.heat import Heat
from polyfuse.select.kernel_race import KernelBout
from polyfuse.select.work import Candidate
from polyfuse.select.workshop import Entry
from product_kernels import kernels_of

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


class Shop:
    def is_built(self, entry: Entry) -> bool:
        return True

    def candidate(self, entry: Entry) -> Candidate:
        return Candidate(entry.name, ())


def tried(monkeypatch: Any, times: dict[str, float], *names: str) -> tuple[list[str], str | None]:
    (kernel,) = kernels_of(lambda x: x.sin() + 1, torch.randn(8, 16))
    tuner: Any = SimpleNamespace(
        key=lambda *_: "key",
        timer=lambda device: SimpleNamespace(name="one"),
        configs=lambda backend, kernel: CONFIGS[backend.name],
    )

    def fake(track: Any, problem: Any, found: list[Candidate], *_: Any) -> dict[str, float]:
        return {c.name: times.get(c.name, 9.0) for c in found}

    monkeypatch.setattr(heat_module, "race", fake)
    bout = KernelBout(tuner, kernel, [Writer(name) for name in names])  # type: ignore[misc]
    heat = Heat(bout, Measured())
    heat.enter(bout.opening())
    heat.time(None, Shop(), Rules())  # type: ignore[arg-type]
    while heat.goes_on():
        heat.time(None, Shop(), Rules())  # type: ignore[arg-type]
    return list(heat.entries), heat.measured(final=True).best


def test_of_one_backend_all_configurations_are_tried(monkeypatch):
    entries, best = tried(monkeypatch, {"": 3.0, "n=1": 4.0, "n=2": 2.0, "n=3": 2.0}, "one")
    assert entries == ["", "n=1", "n=2", "n=3"] and best == "n=2"


def test_of_several_only_of_those_that_do_well(monkeypatch):
    entries, best = tried(monkeypatch, {"one": 1.0, "two n=1": 2.0, "three": 1.05}, "one", "two", "three")
    assert entries == ["one", "two n=1", "three", "one n=1", "one n=2"] and best == "one"
    times = {"one": 1.0, "two n=1": 0.95, "two n=2": 0.5, "two n=3": 0.6, "one n=1": 0.8}
    entries, best = tried(monkeypatch, times, "one", "two")
    assert entries == ["one", "two n=1", "two n=2", "one n=1", "one n=2", "two n=3"] and best == "two n=2"
