"""`polyfuse settings`: every option, what it does, and its value here."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.markup import escape

from polyfuse.base.settings import MODES, Settings, option_infos

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("--mode", choices=list(MODES), help="show the values under a mode")
    parser.add_argument("--changed", action="store_true", help="only those that differ from their default")


def run(arguments: argparse.Namespace) -> int:
    """Print the options."""
    settings = Settings.resolve(arguments.mode)
    console = Console()
    for info in option_infos().values():
        value = getattr(settings, info.name)
        if arguments.changed and value == info.default:
            continue
        style = "bold" if value == info.default else "bold yellow"
        console.print(
            f"[{style}]{info.name}[/] = {escape(repr(value))}  [dim]{info.variable}[/]", soft_wrap=True
        )
        console.print(f"    {escape(info.doc)}", soft_wrap=True)
    return 0
