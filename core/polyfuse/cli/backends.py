"""`polyfuse backends`: who is installed, and in which state."""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.table import Table

from polyfuse.base.settings import Settings
from polyfuse.plugin import PluginManager, PluginState, State

__all__ = ["configure", "run"]

_STYLES = {
    State.AVAILABLE: "green",
    State.LOADED: "green",
    State.DISABLED: "yellow",
    State.REFUSED: "yellow",
    State.FAILED: "red",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("--load", action="store_true", help="load each, to see whether that works")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the table; the status is 1 when a backend failed."""
    manager = PluginManager(Settings.resolve())
    if arguments.load:
        for state in manager.states():
            for device in state.manifest.device_types if state.manifest else ():
                manager.backends(device)
    states = manager.states()
    if arguments.json:
        print(json.dumps([_row(state) for state in states], indent=2))
    else:
        Console().print(_table(states))
    return 1 if any(state.state is State.FAILED for state in states) else 0


def _row(state: PluginState) -> dict[str, object]:
    manifest = state.manifest
    return {
        "name": state.name,
        "version": state.version,
        "distribution": state.distribution,
        "devices": {device: manifest.priority.get(device) for device in manifest.device_types}
        if manifest
        else {},
        "state": state.state.value,
        "reason": state.reason,
    }


def _table(states: tuple[PluginState, ...]) -> Table:
    table = Table(title="Backends", title_justify="left")
    for heading in ("name", "version", "distribution", "devices (priority)", "state", "reason"):
        table.add_column(heading, overflow="fold")
    for state in states:
        table.add_row(
            state.name,
            state.version,
            state.distribution,
            _devices(state),
            f"[{_STYLES[state.state]}]{state.state.value}[/]",
            state.reason or (state.manifest.summary if state.manifest else ""),
        )
    return table


def _devices(state: PluginState) -> str:
    if state.manifest is None:
        return ""
    if not state.manifest.load:
        return "no code generator"
    priority = state.manifest.priority
    return ", ".join(
        f"{device} ({priority[device]})" if device in priority else f"{device} (by name)"
        for device in state.manifest.device_types
    )
