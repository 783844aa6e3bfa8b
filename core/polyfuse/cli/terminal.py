"""What command lines take and terminals show: durations, and paragraphs of any width."""

from __future__ import annotations

import argparse
import re
import textwrap

from rich.console import Console
from rich.text import Text

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as `90`, `90s`, `1.5m` or `1h`; a type for argparse."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 90s, 5m or 1h")
    return float(found[1]) * _UNITS[found[2]]


def paragraph(console: Console, text: str, indent: int, style: str = "", label: str = "") -> None:
    """Print plain text as an indented paragraph, broken between words at the width of the terminal. A longer
    word, such as a path, stays whole.

    Args:
        indent: columns before each line.
        style: of all of it, or of the label alone if there is one.
        label: what the first line has instead of its indentation, such as `error`.
    """
    margin = " " * indent
    filled = textwrap.fill(
        text,
        console.width,
        initial_indent=label.ljust(indent),
        subsequent_indent=margin,
        break_on_hyphens=False,
        break_long_words=False,
    )
    shown = Text(filled, style="" if label else style)
    if label:
        shown.stylize(style, 0, len(label))
    console.print(shown, soft_wrap=True)
