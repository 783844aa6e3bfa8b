"""Text for terminals of any width."""

from __future__ import annotations

import textwrap

from rich.console import Console

__all__ = ["paragraph"]


def paragraph(console: Console, text: str, indent: int, style: str = "") -> None:
    """Print plain text as an indented paragraph, broken between words at the width of the terminal."""
    margin = " " * indent
    filled = textwrap.fill(
        text, console.width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False
    )
    console.print(filled, style=style or None, markup=False, highlight=False, soft_wrap=True)
