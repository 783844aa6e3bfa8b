"""`polyfuse doctor`: is everything here that is needed."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata

from rich.console import Console
from rich.markup import escape

from polyfuse.base.settings import Settings
from polyfuse.base.version import version
from polyfuse.cache import cache_root, writable_root
from polyfuse.cli.cache import usage
from polyfuse.plugin import Finding, PluginManager, State

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("names", nargs="*", help="backends to look at; all when none is named")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; the status is 1 when one is bad."""
    settings = Settings.resolve()
    manager = PluginManager(settings)
    for name in arguments.names:
        manager.state(name)
    console = Console()
    healthy = _print(console, "polyfuse", list(_own_findings(settings)))
    answers = manager.hooks.ask("polyfuse_doctor", settings=settings)
    for state in manager.states():
        if arguments.names and state.name not in arguments.names:
            continue
        findings = [_state_finding(manager, state.name)]
        findings += [item.value for item in answers.items if item.plugin == state.name]
        findings += _facts(manager, state.name)
        healthy &= _print(console, f"backend {state.name}", findings)
    return 0 if healthy else 1


def _own_findings(settings: Settings) -> Iterator[Finding]:
    yield Finding(
        "version", True, f"polyfuse {version()}, Python {platform.python_version()} on {sys.platform}"
    )
    for package in ("torch", "sympy", "pluggy"):
        try:
            yield Finding(package, True, metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Finding(package, False, "not installed", f"run pip install {package}")
    root = cache_root(settings)
    if not settings.cache:
        yield Finding("cache", True, "off")
    elif writable_root(settings) == root:
        yield Finding("cache", True, str(root))
        for what, held in usage(root).items():
            yield Finding(f"{what} stored", True, f"{held.count}, {held.size / 2**20:.1f} MiB")
    else:
        yield Finding(
            "cache", False, f"{root} cannot be written", "set POLYFUSE_CACHE_DIR to a folder that can"
        )
    yield Finding("builds at once", True, str(settings.build_worker_count()))


def _state_finding(manager: PluginManager, name: str) -> Finding:
    state = manager.state(name)
    for device in state.manifest.device_types if state.manifest else ():
        manager.backends(device)
    state = manager.state(name)
    # Not being usable on this machine is a fact about it; only a plugin that breaks is ill.
    return Finding("state", state.state is not State.FAILED, state.state.value, state.reason)


def _facts(manager: PluginManager, name: str) -> list[Finding]:
    if manager.state(name).state is not State.LOADED:
        return []
    try:
        facts = manager.backend(name).describe()
    except Exception as error:
        return [Finding("describe", False, f"{type(error).__name__}: {error}", "report it to the author")]
    return [Finding(key, True, value) for key, value in facts.items()]


def _print(console: Console, title: str, findings: Sequence[Finding]) -> bool:
    console.print(f"[bold]{escape(title)}[/]")
    for finding in findings:
        mark = "[green]ok[/] " if finding.ok else "[red]BAD[/]"
        fix = f" → {finding.fix}" if finding.fix else ""
        console.print(f"  {mark} {escape(finding.subject)}: {escape(finding.detail + fix)}", soft_wrap=True)
    return all(finding.ok for finding in findings)
