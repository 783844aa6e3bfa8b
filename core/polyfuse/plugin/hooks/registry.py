"""Plugins that a program registers itself, beside those that are installed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType


@dataclass(frozen=True)
class Registered:
    """A plugin of this process: a module, or another object whose attributes are hook implementations."""

    name: str
    plugin: object


_LOCK = threading.Lock()
_PLUGINS: dict[str, Registered] = {}
_CHANGES = [0]


def register(plugin: object, name: str = "") -> str:
    """Let sessions of this process use a plugin without an entry point, and return its name.

    Args:
        plugin: a module, class or other object with functions marked `hookimpl`. It may do without the hook
            `polyfuse_manifest`. The benchmark worker, another process, imports it where it is a module, or
            what a name of a module stands for; of others, a warning says that it does not know them, and the
            option `tune_in_process` lets candidates run in this process.
        name: a unique name; empty: the one in its manifest, or its own.

    Graphs that were compiled before stay as they are. Of several plugins, the one registered last is called
    first, and all of them before installed ones.

    Raises:
        ValueError: a plugin of that name, or this one, is registered already.
        TypeError: the plugin has no hash.
    """
    try:
        hash(plugin)
    except TypeError:
        raise TypeError(
            f"a {type(plugin).__name__} has no hash and cannot be a plugin; give a module or class"
        ) from None
    declare = getattr(plugin, "polyfuse_manifest", None)
    name = name or str(getattr(declare() if callable(declare) else None, "name", ""))
    name = name or str(getattr(plugin, "__name__", "") or type(plugin).__name__)
    with _LOCK:
        if name in _PLUGINS:
            raise ValueError(f"a plugin named {name!r} is registered already; give it another name")
        for other in _PLUGINS.values():
            if other.plugin is plugin:
                raise ValueError(f"this plugin is registered already, as {other.name!r}; unregister it first")
        _PLUGINS[name] = Registered(name, plugin)
        _CHANGES[0] += 1
    return name


def unregister(plugin: object) -> None:
    """Undo `register` for sessions that begin later.

    Args:
        plugin: what was registered, or its name.

    Raises:
        ValueError: it is not registered.
    """
    with _LOCK:
        found = [n for n, known in _PLUGINS.items() if known.plugin is plugin or n == plugin]
        if not found:
            raise ValueError(f"{plugin!r} is not registered; registered are {sorted(_PLUGINS) or 'none'}")
        del _PLUGINS[found[0]]
        _CHANGES[0] += 1


def registered() -> tuple[Registered, ...]:
    """Return the plugins of this process in the order in which they were registered."""
    with _LOCK:
        return tuple(_PLUGINS.values())


def importable(plugin: object) -> str:
    """Return where another process can import a plugin, `"module"` or `"module:name"`; empty: nowhere."""
    name = ""
    if isinstance(plugin, ModuleType):
        home: ModuleType | None = plugin
    else:
        kind = plugin if isinstance(plugin, type) else type(plugin)
        home = sys.modules.get(kind.__module__)
        name = next((name for name, value in vars(home).items() if value is plugin), "") if home else ""
        if not name:
            return ""
    spec = getattr(home, "__spec__", None)
    # the program itself, and a module made by hand, cannot be imported again
    if spec is None or not spec.origin or spec.name == "__main__" or home is not sys.modules.get(spec.name):
        return ""
    return f"{spec.name}:{name}" if name else str(spec.name)


def register_imported(import_paths: Iterable[tuple[str, str]]) -> None:
    """Register what another process registered, by name and `importable` path, unless importing it does."""
    for name, import_path in import_paths:
        module, _, attribute = import_path.partition(":")
        home = import_module(module)
        if not any(known.name == name for known in registered()):
            register(getattr(home, attribute) if attribute else home, name)


def generation() -> int:
    """Return a number that is another one whenever plugins were registered or unregistered."""
    with _LOCK:
        return _CHANGES[0]
