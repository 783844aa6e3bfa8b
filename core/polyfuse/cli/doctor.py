"""`polyfuse doctor`: is everything here that is needed, and what to do where it is not."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata

from rich.console import Console

from polyfuse.base.code import version
from polyfuse.base.log import unannounced
from polyfuse.base.settings import Settings
from polyfuse.cache import cache_root, writable_root
from polyfuse.cli.availability import Availability, PluginStatus, in_order, status_of
from polyfuse.cli.cache import usage
from polyfuse.cli.terminal import paragraph
from polyfuse.plugin import Finding, PluginManager
from polyfuse.torch_compat.devices.present import is_present

EXAMPLE = """
polyfuse doctor                    # what is wrong, most important first, and what can be used
polyfuse doctor --verbose          # also what is well
polyfuse doctor NAME               # one backend
"""

_LEVELS = ("error", "warning", "note")
"""From heaviest to lightest: it does not work, it works less well than it could, it is so."""


_INDENT = 8
"""Columns that the weight of a finding takes."""


@dataclass(frozen=True)
class _Item:
    """A finding about a part of the installation, with its weight.

    Attributes:
        level: its weight, one of `_LEVELS`.
        about: the part: `polyfuse`, or a plugin.
        subject, detail, fix: as in `Finding`.
    """

    level: str
    about: str
    subject: str
    detail: str
    fix: str = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("names", nargs="*", help="backends to look at; all when none is named")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--verbose", action="store_true", help="also what is well")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings, heaviest first, and what can be used. The status is 1 when something is broken or
    no backend compiles for the CPU.
    """
    settings = Settings.resolve()
    with unannounced("plugin '"):  # the state of each is shown
        manager = PluginManager(settings)
        names = arguments.names or [state.name for state in manager.states()]
        found = [status_of(manager, name, load=True) for name in names]
        items = [*_own(settings), *_of_plugins(found, manager, settings)]
        every = found if not arguments.names else [status_of(manager, s.name, True) for s in manager.states()]
    ready = {device: in_order(every, manager, device) for device in _devices(every)}
    if not ready.get("cpu"):
        items.append(
            _Item(
                *("error", "polyfuse", "no compiler for the CPU", "kernels are interpreted, which is slow"),
                "install a C++ compiler; `polyfuse backends` shows what else is missing",
            )
        )
    items.sort(key=lambda item: _LEVELS.index(item.level))
    if arguments.json:
        print(
            json.dumps(
                {
                    "ok": not any(item.level == "error" for item in items),
                    "ready": ready,
                    "findings": [asdict(item) for item in items],
                    "backends": {item.plugin.name: item.status.value for item in every},
                },
                indent=2,
            )
        )
    else:
        console = Console(highlight=False)
        _print(console, items, arguments.verbose or bool(arguments.names))
        paragraph(console, _conclusion(ready), 0)
    return 1 if any(item.level == "error" for item in items) else 0


def _conclusion(ready: dict[str, tuple[str, ...]]) -> str:
    words = [f"{device}: {', then '.join(names)}" for device, names in ready.items() if names]
    return f"Ready: {'; '.join(words)}" if words else "Not ready: no backend compiles kernels here"


def _devices(found: Sequence[Availability]) -> list[str]:
    """The device types of this machine that a plugin serves, the CPU first."""
    served = {device for item in found for device in item.device_types if device != "*"} | {"cpu"}
    return sorted((device for device in served if is_present(device)), key=lambda d: (d != "cpu", d))


def _own(settings: Settings) -> Iterator[_Item]:
    python = f"Python {platform.python_version()} on {sys.platform}"
    yield _Item("note", "polyfuse", "version", f"{version()}, {python}")
    for package in ("torch", "sympy", "pluggy"):
        try:
            yield _Item("note", "polyfuse", package, metadata.version(package))
        except metadata.PackageNotFoundError:
            yield _Item("error", "polyfuse", package, "not installed", f"run pip install {package}")
    root = cache_root(settings)
    if not settings.cache:
        yield _Item(
            *("warning", "polyfuse", "cache", "off: each process compiles everything anew"),
            "set the option `cache`",
        )
    elif writable_root(settings) == root:
        held = usage(root)
        size = sum(item.size for item in held.values()) / 2**20
        stored = ", ".join(f"{item.count} {what}" for what, item in held.items() if item.count)
        yield _Item(
            "note", "polyfuse", "cache", f"{root}, {size:.1f} MiB" + (f": {stored}" if stored else "")
        )
        barred = held["barred kernels"].count
        if barred:
            yield _Item(
                *("warning", "polyfuse", "barred kernels", f"{barred} differed from the interpreter"),
                "report them; `polyfuse cache clear --kind barred` tries them again",
            )
    else:
        yield _Item(
            *("warning", "polyfuse", "cache", f"{root} cannot be written, so nothing is cached"),
            "set POLYFUSE_CACHE_DIR to a folder that can",
        )
    yield _Item("note", "polyfuse", "builds at once", str(settings.build_worker_count()))


def _of_plugins(found: Sequence[Availability], manager: PluginManager, settings: Settings) -> Iterator[_Item]:
    """How each plugin stands, and what it says of its own toolchain where it can be used."""
    answers = manager.hooks.ask("polyfuse_doctor", settings=settings)
    for item in found:
        name = item.plugin.name
        asked = item.status in (PluginStatus.READY, PluginStatus.UNUSABLE)
        answer: list[Finding] = [one.value for one in answers.items if asked and one.plugin == name]
        broken = [one for one in answer if not one.ok]
        if item.status is not PluginStatus.UNUSABLE or not broken:  # else the plugin itself says it better
            level = {PluginStatus.FAILED: "error", PluginStatus.UNUSABLE: "warning"}.get(item.status, "note")
            detail = item.status.value + (f": {item.reason}" if item.reason else "")
            yield _Item(level, name, name, detail, item.fix)
        for one in broken if item.status is PluginStatus.UNUSABLE else answer:
            about = f"{name}: {one.subject}"
            yield _Item("note" if one.ok else "error", name, about, one.detail, one.fix)


def _print(console: Console, items: Sequence[_Item], verbose: bool) -> None:
    marks = {"error": ("error", "red"), "warning": ("warning", "yellow"), "note": ("ok", "green")}
    for item in items:
        if item.level == "note" and not verbose:
            continue
        label, style = marks[item.level]
        paragraph(console, f"{item.subject}: {item.detail}", _INDENT, style, label)
        if item.fix and item.level != "note":
            paragraph(console, f"fix: {item.fix}", _INDENT)
    notes = sum(item.level == "note" for item in items)
    if not verbose:
        console.print(f"[dim]{notes} other checks passed; --verbose shows them[/]")
