"""Entry points that are not installed, for tests of the manager."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType

import torch

from polyfuse.compiler.reports.report import reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin import API_VERSION, Manifest, hookimpl
from polyfuse.plugin.session import discovery, manager

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


def serve(monkeypatch, tmp_path: Path, kind: type, hooks: Mapping[str, object] = {}) -> None:
    """Let new sessions, with a cache of their own, ask this backend, called `toy`, first on the CPU."""
    home = ModuleType(f"fake_{kind.__name__}_backend")
    home.kind = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, home.__name__, home)
    load = f"{home.__name__}:kind"
    point = plugin(monkeypatch, hooks=hooks, load=load, priority={"cpu": 1000}, options={})
    real = manager.find_candidates
    monkeypatch.setattr(manager, "find_candidates", lambda points: (*real(None), *real([point])))
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    forget_sessions()
    reset_reports()
    torch.compiler.reset()


def install(monkeypatch, *points: metadata.EntryPoint) -> None:
    """Let new sessions find these plugins too, as if they were installed."""
    everything = [*metadata.entry_points(group=discovery.ENTRY_POINT_GROUP), *points]
    monkeypatch.setattr(manager, "find_candidates", lambda _: discovery.find_candidates(everything))
