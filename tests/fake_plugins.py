"""Entry points that are not installed, for tests of the manager."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from types import ModuleType

from polyfuse.plugin import API_VERSION, Manifest, discovery, hookimpl, manager

MANIFEST = Manifest(
    name="toy",
    version="2.0",
    distribution="polyfuse-toy",
    api=API_VERSION,
    device_types=("cpu",),
    priority={"cpu": 10},
    load="toy_backend:ToyBackend",
    options={"level": "How much.", "count": "Where."},
)


class FakeDistribution(metadata.Distribution):
    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def metadata(self) -> Mapping[str, str]:  # type: ignore[override]
        return {"Name": self._name, "Version": "9.9"}

    def read_text(self, filename: str) -> str | None:
        return None

    def locate_file(self, path: object) -> object:
        raise FileNotFoundError


def entry_point(name: str, module: str, distribution: str = "polyfuse-toy") -> metadata.EntryPoint:
    point = metadata.EntryPoint(name, module, "polyfuse.backends")
    return point._for(FakeDistribution(distribution))  # type: ignore[attr-defined]


def plugin(monkeypatch, name: str = "toy", hooks: Mapping[str, object] = {}, **changes: object):
    """Make a module with a manifest, and return an entry point that names it."""
    module = ModuleType(f"fake_{name}_manifest")
    manifest = replace(MANIFEST, name=name, **changes)  # type: ignore[arg-type]

    @hookimpl
    def polyfuse_manifest() -> Manifest:
        return manifest

    module.polyfuse_manifest = polyfuse_manifest  # type: ignore[attr-defined]
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))  # type: ignore[type-var]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return entry_point(name, module.__name__, f"polyfuse-{name}")


def install(monkeypatch, *points: metadata.EntryPoint) -> None:
    """Let new sessions find these plugins too, as if they were installed."""
    everything = [*metadata.entry_points(group=discovery.ENTRY_POINT_GROUP), *points]
    monkeypatch.setattr(manager, "find_candidates", lambda _: discovery.find_candidates(everything))
