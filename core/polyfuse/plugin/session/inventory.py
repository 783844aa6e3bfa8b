"""The plugins of a session as text: what a compiled graph depends on besides the facts of its backends."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from polyfuse.base.code import code_stamp

if TYPE_CHECKING:
    from polyfuse.plugin.backend import Backend
    from polyfuse.plugin.session.manager import PluginManager
    from polyfuse.plugin.session.states import PluginState

_THIS_PROCESS: Final = uuid.uuid4().hex


def inventory(plugins: PluginManager, code: Callable[[str], str]) -> tuple[str, ...] | None:
    """One line for each plugin, equal only for plugins of equal code; None where a plugin has no files that
    identify its code.

    Args:
        code: an address of the code of a package; empty where it has none.
    """
    lines: list[str] = []
    for state in plugins.states():
        usable = state.usable
        line = f"{state.name} {state.distribution} {state.version} {usable or state.reason}"
        if usable:
            stamps = [code(package) for package in _packages(plugins, state)]
            if not all(stamps):
                return None
            line += f" {plugins.settings.backends} {state.manifest} {stamps}"
        lines.append(line)
    return tuple(lines)


def installed(plugins: PluginManager) -> tuple[str, ...] | None:
    """As `inventory`, but whether a plugin can be used at the moment is no part of it: what it built can be
    run where it cannot build.
    """
    lines = []
    for state in plugins.states():
        stamps = [code_stamp(package) for package in _packages(plugins, state) if package]
        if not all(stamps):
            return None
        lines.append(f"{state.name} {state.distribution} {state.version} {stamps}")
    return tuple(lines)


def code_of(plugins: PluginManager, backend: Backend, code: Callable[[str], str]) -> str:
    """The plugin of a backend, its version and an address of its code: what it built, it built by that.

    Where the code has no files that identify it, or they changed since this process began, nobody
    knows what was built by it: the answer is another one in each process.

    Args:
        code: an address of the code of a package; empty where it has none.
    """
    state = plugins.state(backend.name)
    own = type(backend).__module__.partition(".")[0]
    stamps = [code(package) or _THIS_PROCESS for package in dict.fromkeys((*_packages(plugins, state), own))]
    return f"{state.name} {state.distribution} {state.version} {' '.join(stamps)}"


def _packages(plugins: PluginManager, state: PluginState) -> tuple[str, ...]:
    modules = [plugins.module(state.name)]
    if state.manifest is not None and state.manifest.load:
        modules.append(state.manifest.load.partition(":")[0])
    return tuple(dict.fromkeys(name.partition(".")[0] for name in modules))
