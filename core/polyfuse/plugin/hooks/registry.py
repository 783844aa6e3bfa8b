"""Plugins that a program registers itself, beside those that are installed."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["Registered", "generation", "register", "registered", "unregister"]


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
            `polyfuse_manifest`. The benchmark worker, another process, does not know it: candidates of such
            a backend are timed with the option `tune_in_process`.
        name: a unique name; empty: the one in its manifest, or its own.

    Graphs that were compiled before stay as they are. Of several plugins, the one registered last is called
    first, and all of them before installed ones.

    Raises:
        ValueError: a plugin of that name, or this one, is registered already.
    """
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


def generation() -> int:
    """Return a number that is another one whenever plugins were registered or unregistered."""
    with _LOCK:
        return _CHANGES[0]
