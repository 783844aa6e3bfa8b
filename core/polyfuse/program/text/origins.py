"""Where steps come from, in one line."""

from __future__ import annotations

from functools import lru_cache

from polyfuse.base.text import shorten
from polyfuse.ir.nodes import Origin

_SHOWN_SOURCES = 3
_SHOWN_OPS = 8

_shown_source = lru_cache(1024)(shorten)
"""Equal layers have equal lines."""


def origin_text(origins: tuple[Origin, ...]) -> str:
    """Operators and source lines on one line."""
    if not origins:
        return "the compiler"
    ops = list(dict.fromkeys(o.op for o in origins))
    sources = list(dict.fromkeys(_shown_source(o.source) for o in origins if o.source))
    shown = ", ".join(ops[:_SHOWN_OPS])
    if len(ops) > _SHOWN_OPS:
        shown += f" and {len(ops) - _SHOWN_OPS} more"
    if not sources:
        return shown
    locations = "; ".join(sources[:_SHOWN_SOURCES])
    more = len(sources) - _SHOWN_SOURCES
    return f"{shown} at {locations}" + (f" and {more} more lines" if more > 0 else "")
