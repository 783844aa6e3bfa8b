"""`polyfuse settings`: every option, what it takes, what it does, and its value here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape

from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.options import OptionInfo
from polyfuse.base.settings import MODES, Settings, environment, option_infos
from polyfuse.cli.terminal import paragraph
from polyfuse.plugin import PluginManager

EXAMPLE = """
polyfuse settings tune             # options with this word in their name or text
polyfuse settings --changed        # what differs from the defaults here, and why
polyfuse settings --mode max-autotune --changed
"""


@dataclass(frozen=True)
class _Row:
    """One option as it stands.

    Attributes:
        name, takes, doc, variable: what it is.
        value, default: as text.
        origin: where the value comes from: `default`, the mode, or a variable of the environment.
    """

    name: str
    value: str
    default: str
    origin: str
    takes: str
    variable: str
    doc: str

    @property
    def is_changed(self) -> bool:
        """Whether it differs from its default."""
        return self.value != self.default


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("words", nargs="*", help="only options with all of these words in name or text")
    parser.add_argument("--mode", choices=list(MODES), help="show the values under a mode")
    parser.add_argument("--changed", action="store_true", help="only those that differ from their default")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the options; the status is 1 if no option has the words that were asked for."""
    settings = Settings.resolve(arguments.mode)
    mode = {} if arguments.mode is None else MODES[arguments.mode]
    every = [*_rows(settings, arguments.mode, mode), *_plugin_rows(settings)]
    words = [word.lower() for word in arguments.words]
    found = [row for row in every if all(word in f"{row.name} {row.doc}".lower() for word in words)]
    if words and not found:
        raise InvalidOptionError(
            f"no option has {' and '.join(arguments.words)} in its name or text",
            "`polyfuse settings` lists them all",
        )
    if arguments.changed:
        found = [row for row in found if row.is_changed]
    if arguments.json:
        print(json.dumps([vars(row) for row in found], indent=2))
    else:
        _print(Console(highlight=False), found)
        if not found:
            print("every option has its default")
    return 0


def _rows(settings: Settings, mode_name: str | None, mode: Mapping[str, object]) -> Iterator[_Row]:
    for info in option_infos().values():
        if info.name == "plugin_options":
            continue
        value = getattr(settings, info.name)
        origin = "default"
        if info.name in mode:
            origin = f"mode {mode_name}"
        elif value != info.default or environment(info.variable):
            origin = f"{info.variable} in the environment"
        yield _Row(info.name, repr(value), repr(info.default), origin, _takes(info), info.variable, info.doc)


def _plugin_rows(settings: Settings) -> Iterator[_Row]:
    """The options that plugins declare; what they default to is theirs."""
    for state in PluginManager(settings).states():
        for option, doc in (state.manifest.options if state.manifest is not None else {}).items():
            variable = f"POLYFUSE_{state.name.upper()}__{option.upper()}"
            value = settings.plugin_option(state.name, option)
            given = "not set" if value is None else repr(value)
            origin = "default" if value is None else f"{variable} in the environment"
            yield _Row(f"{state.name}.{option}", given, "not set", origin, "text", variable, doc)


def _takes(info: OptionInfo) -> str:
    if info.choices:
        return " | ".join(str(choice) for choice in info.choices)
    kinds = {
        "bool": "0 or 1",
        "str": "text",
        "int": "an integer",
        "int | None": "an integer, or none",
        "tuple[int, ...]": "integers, separated by commas",
    }
    text = kinds.get(info.kind, "names, separated by commas")
    return text + (f", at least {info.minimum}" if info.minimum is not None else "")


def _print(console: Console, rows: list[_Row]) -> None:
    for row in rows:
        style = "bold yellow" if row.is_changed else "bold"
        console.print(f"[{style}]{escape(row.name)}[/] = {escape(row.value)}", soft_wrap=True)
        if row.is_changed:
            paragraph(console, f"default {row.default}; set by {row.origin}", 4)
        paragraph(console, f"takes {row.takes}; {row.variable}", 4, "dim")
        paragraph(console, row.doc, 4)
