"""Text for terminals of any width."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.text import Text


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
