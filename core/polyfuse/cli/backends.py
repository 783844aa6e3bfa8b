"""`polyfuse backends`: which plugins are installed, whether they can be used here, and what they offer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from polyfuse.base.log import unannounced
from polyfuse.base.settings import Settings
from polyfuse.cli.availability import Availability, PluginStatus, status_of
from polyfuse.cli.terminal import paragraph
from polyfuse.plugin import PluginManager

EXAMPLE = """
polyfuse backends                  # what is installed, and what can be used here
polyfuse backends --load           # load each, to see whether that works
"""

_STYLES = {
    PluginStatus.READY: "green",
    PluginStatus.ABSENT_DEVICE: "dim",
    PluginStatus.DISABLED: "yellow",
    PluginStatus.UNUSABLE: "yellow",
    PluginStatus.FAILED: "red",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("--load", action="store_true", help="load each, to see whether that works")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the list; the status is 1 when a plugin failed."""
    with unannounced("plugin '"):  # the state of each is shown
        manager = PluginManager(Settings.resolve())
        found = [status_of(manager, state.name, arguments.load) for state in manager.states()]
    if arguments.json:
        print(json.dumps([_row(item) for item in found], indent=2))
    else:
        _print(Console(highlight=False), found)
    return 1 if any(item.status is PluginStatus.FAILED for item in found) else 0


def _row(item: Availability) -> dict[str, object]:
    plugin, manifest = item.plugin, item.plugin.manifest
    return {
        "name": plugin.name,
        "version": plugin.version,
        "distribution": plugin.distribution,
        "devices": {device: manifest.priority.get(device) for device in manifest.device_types}
        if manifest
        else {},
        "status": item.status.value,
        "state": plugin.state.value,
        "reason": item.reason,
        "fix": item.fix,
        "offers": [offer.value for offer in manifest.offers] if manifest else [],
        "summary": manifest.summary if manifest else "",
        "options": dict(manifest.options) if manifest else {},
    }


def _print(console: Console, found: Sequence[Availability]) -> None:
    """A paragraph for each: name, status and devices on the first line, then reason, fix and offers."""
    width = max((len(item.plugin.name) for item in found), default=0)
    for item in found:
        plugin, manifest = item.plugin, item.plugin.manifest
        style = _STYLES[item.status]
        console.print(
            f"[bold]{escape(plugin.name):<{width}}[/]  [{style}]{item.status.value}[/]"
            f"  {escape(_devices(item))}",
            soft_wrap=True,
        )
        if item.reason:
            why = item.reason + (f"; {item.fix}" if item.fix else "")
            paragraph(console, why, width + 2, style)
        if manifest is not None:
            offers = ", ".join(offer.value for offer in manifest.offers)
            summary = f": {manifest.summary}" if manifest.summary else ""
            paragraph(console, f"offers {offers}{summary}", width + 2)
        paragraph(console, f"{plugin.distribution} {plugin.version}", width + 2, "dim")


def _devices(item: Availability) -> str:
    manifest = item.plugin.manifest
    if manifest is None:
        return ""
    if not manifest.load:
        return "no code generator"
    return ", ".join(
        ("any device" if device == "*" else device)
        + (f" (priority {manifest.priority[device]})" if device in manifest.priority else " (by name)")
        for device in manifest.device_types
    )
