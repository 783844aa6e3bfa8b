"""Sizes to measure at, as the command line gives them: `batch=1,2,4..64`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from polyfuse.base.errors import InvalidOptionError


def sweep_of(text: str) -> tuple[str, tuple[int, ...]]:
    """A name and its values: `batch=1,2,4..64` is 1, 2, and then 4 doubled up to 64.

    Raises:
        InvalidOptionError: the text is something else.
    """
    name, equals, values = text.partition("=")
    found: dict[int, None] = {}
    for word in values.split(","):
        pair = re.fullmatch(r"\s*(\d+)(?:\.\.(\d+))?\s*", word)
        if not equals or not name.isidentifier() or pair is None:
            raise InvalidOptionError(f"{text!r} is no sweep", "write name=values, as in batch=1,2,4..64")
        value, last = int(pair[1]), int(pair[2] or pair[1])
        while value <= last:
            found[value] = None
            value = value * 2 if value else 1
    return name, tuple(found)


def points(sweeps: Sequence[tuple[str, Sequence[int]]]) -> list[Mapping[str, int]]:
    """Every combination of the values of all sweeps; one without sizes where there are none."""
    names = [name for name, _ in sweeps]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(v for _, v in sweeps))]
