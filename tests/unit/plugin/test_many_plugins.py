"""Thirty installed plugins: what a session does for each, by counting, and the order in which wrappers see a
call.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import pytest
import torch

from fake_plugins import install, plugin
from polyfuse.base.settings import Settings
from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin import Claim, Extensions, FusionPair, FusionRule, PluginManager, Yes, hookimpl
from polyfuse.plugin.hooks import specs

COUNT = 30
NAMES = [f"p{number:02}" for number in range(COUNT)]
HOOKS = [name for name in specs.__all__ if name.startswith("polyfuse_")]


def test_nothing_of_them_is_imported_or_asked_before_it_is_needed(monkeypatch):
    """Each manifest is read, once by discovery and once as a hook that wrappers see."""
    calls: Counter[str] = Counter()

    def noting(hook: str) -> Callable[[], None]:
        return lambda: calls.update([hook])

    hooks = {hook: noting(hook) for hook in HOOKS if hook != "polyfuse_manifest"}
    points = [
        plugin(monkeypatch, name, hooks, load=f"heavy_{name}:Backend", priority={"cpu": 1}) for name in NAMES
    ]
    before = set(sys.modules)
    manager = PluginManager(Settings(), points)
    assert not [name for name in set(sys.modules) - before if name.startswith("heavy_")]
    assert not calls and len(manager.states()) == COUNT
    extensions = Extensions(manager)
    for _ in range(3):
        assert manager.order("cpu") == ()
        assert manager.timer("any", "cpu") is manager.timer("any", "cpu")
        assert not extensions.fusion_rules("p00", "cpu").refuse
        assert not extensions.fusion_rules("p01", "cpu").refuse
    once = dict.fromkeys(("polyfuse_codegen", "polyfuse_timer", "polyfuse_fusion_rules"), COUNT)
    assert calls == once, "each hook asks each plugin once for a type of device"
    assert not [name for name in set(sys.modules) - before if name.startswith("heavy_")]


def test_what_thirty_installed_plugins_cost_is_counted(tmp_path, monkeypatch):
    """Two files of each are read and one module is imported, by one thread, once in a process."""
    for name in NAMES:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[polyfuse.backends]\n{name} = fake_{name}_manifest\n")
        plugin(monkeypatch, name, load=f"heavy_{name}:Backend", priority={"cpu": 1})
    monkeypatch.syspath_prepend(tmp_path)
    read: Counter[str] = Counter()
    threads: list[str] = []
    loads: list[str] = []
    real, start, load = (
        metadata.PathDistribution.read_text,
        threading.Thread.start,
        metadata.EntryPoint.load,
    )

    def reading(self: metadata.PathDistribution, filename: str) -> str | None:
        if str(self.locate_file("")) == str(tmp_path):
            read[filename] += 1
        return real(self, filename)

    monkeypatch.setattr(metadata.PathDistribution, "read_text", reading)

    def starting(self: threading.Thread) -> None:
        if threading.current_thread() is threading.main_thread():  # others may be of earlier tests
            threads.append(self.name)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", starting)
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: [loads.append(self.name), load(self)][1])
    before = set(sys.modules)
    manager = PluginManager(Settings())
    assert {state.name for state in manager.states()} >= set(NAMES)
    assert all(manager.state(name).usable for name in NAMES)
    assert read == {"entry_points.txt": COUNT, "METADATA": COUNT}
    assert threads.count("polyfuse-manifests") == 1 and len(threads) == 2, "and one for the hook itself"
    assert sorted(name for name in loads if name in NAMES) == NAMES
    assert not [name for name in set(sys.modules) - before if name.startswith("heavy_")]
    PluginManager(Settings())
    assert read == {"entry_points.txt": COUNT, "METADATA": COUNT}, "another session reads nothing"


@pytest.mark.parametrize("hook", HOOKS)
def test_wrappers_of_thirty_plugins_nest_by_name(monkeypatch, hook):
    """The first by name, which plain implementations of its rank come before too, is outermost."""
    seen: list[str] = []

    def wrapper(name: str) -> Callable[[], Iterator[None]]:
        def wrap() -> Any:
            seen.append(f"{name} in")
            answer = yield
            seen.append(f"{name} out")
            return answer

        return wrap

    free: dict[str, Any] = {"load": "", "device_types": (), "priority": {}}
    points = [plugin(monkeypatch, name, **free) for name in NAMES]
    for name in NAMES:
        module = sys.modules[f"fake_{name}_manifest"]
        marked = hookimpl(wrapper=True, specname=hook)(wrapper(name))
        monkeypatch.setattr(module, f"around_{hook}", marked, raising=False)
    manager = PluginManager(Settings(), points)
    seen.clear()
    arguments = dict.fromkeys(getattr(manager.hooks.hook, hook).spec.argnames)
    arguments = {**arguments, **{k: "cpu" for k in ("device_type",) if k in arguments}}
    answers = manager.hooks.ask(hook, **arguments)
    assert not answers.faults
    assert seen == [f"{name} in" for name in NAMES] + [f"{name} out" for name in reversed(NAMES)]


def test_a_kernel_calls_no_hook(monkeypatch, tmp_path):
    """What hooks answered are objects: a second graph, however many kernels it has, calls none but to show
    decisions.
    """
    calls: Counter[str] = Counter()
    rules: list[FusionPair] = []

    def look(pair: FusionPair) -> Claim:
        rules.append(pair)
        return Yes()

    def noting(hook: str) -> Callable[[], Any]:
        def answer() -> Any:
            calls[hook] += 1
            if hook == "polyfuse_fusion_rules":
                return [FusionRule("look", look, backends=("interpreter",))]
            return () if hook in ("polyfuse_rewrites", "polyfuse_choices", "polyfuse_cache_key") else None

        return answer

    hooks = {hook: noting(hook) for hook in HOOKS if hook != "polyfuse_manifest"}
    free: dict[str, Any] = {"load": "", "device_types": (), "priority": {}}
    install(monkeypatch, *(plugin(monkeypatch, name, hooks, **free) for name in NAMES))
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    forget_sessions()
    torch.compiler.reset()

    def compiled(kernels: int) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            for _ in range(kernels):
                x = torch.softmax(x, 0).t().sin()
            return x

        x = torch.randn(kernels + 2, kernels + 2)
        run = torch.compile(f, backend="polyfuse", options={"backends": ["interpreter"]}, dynamic=False)
        torch.testing.assert_close(run(x), f(x))

    compiled(1)
    first, asked = calls.copy(), len(rules)
    compiled(4)
    forget_sessions()
    assert calls == first and max(first.values()) <= 2 * COUNT and len(rules) > asked
