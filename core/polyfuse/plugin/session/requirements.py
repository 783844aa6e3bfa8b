"""Requirements that need no parser: `packaging`, which has one for all, takes longer to import than the
manifests do.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Final

_RELEASE: Final = r"\d+(?:\.\d+)*"
_LIMIT: Final = rf"(?:>=|<=|>|<)\s*{_RELEASE}"
_REQUIREMENT: Final = re.compile(rf"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*((?:{_LIMIT}(?:\s*,\s*{_LIMIT})*)?)\s*")
# "+cpu" and the like say nothing about order
_VERSION: Final = re.compile(rf"({_RELEASE})(?:\+[A-Za-z0-9.]+)?")
_ORDERS: Final[Mapping[str, Callable[[list[int], list[int]], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def plain_requirement(text: str) -> tuple[str, str] | None:
    """The name and the limits of a requirement such as ``"numpy>=1.26,<3"``; None if it says more."""
    found = _REQUIREMENT.fullmatch(text)
    return (found[1], found[2]) if found else None


def is_within(limits: str, version: str) -> bool | None:
    """Whether a version is within limits that `plain_requirement` gave; None if it is no plain release."""
    release = _VERSION.fullmatch(version)
    if release is None:
        return None
    return all(
        _ORDERS[sign](*_same_length(release[1], bound))
        for sign, bound in re.findall(rf"(>=|<=|>|<)\s*({_RELEASE})", limits)
    )


def _same_length(one: str, other: str) -> tuple[list[int], list[int]]:
    """Two releases as numbers; what is left out is 0."""
    parts = [[int(number) for number in text.split(".")] for text in (one, other)]
    longest = max(map(len, parts))
    first, second = (numbers + [0] * (longest - len(numbers)) for numbers in parts)
    return first, second
