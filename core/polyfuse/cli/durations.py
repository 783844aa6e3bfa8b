"""Durations as command lines give them."""

from __future__ import annotations

import argparse
import re

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as `90`, `90s`, `1.5m` or `1h`; a type for argparse."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)([smh]?)", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 90s, 5m or 1h")
    return float(found[1]) * _UNITS[found[2]]
