"""Which combinations of a test's parameters are quick; the others are slow tests.

With the marker `each_value`, enough are quick that every value of every parameter is in one. With
`quick(n)`, so many are. Combinations are taken in an order that looks random and is always the same, so that
a run can be repeated.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable

import pytest


def mark_others_slow(items: Iterable[pytest.Item]) -> None:
    """Mark the combinations that add no value to those before them."""
    families: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        # what is slow or needs a GPU covers nothing in a quick run
        if (
            isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
            and (item.get_closest_marker("each_value") or item.get_closest_marker("quick"))
            and not any(item.iter_markers("slow"))
        ):
            families[item.nodeid.partition("[")[0]].append(item)
    for family in families.values():
        family.sort(key=_order)
        most = family[0].get_closest_marker("quick")
        quick = family[: most.args[0]] if most else _covering(family)
        for item in set(family).difference(quick):
            item.add_marker(pytest.mark.slow)


def _covering(family: list[pytest.Function]) -> list[pytest.Function]:
    """Few that have every value, each of those that add most to what was chosen before."""
    values = {item: _values(item) for item in family}
    missing = set().union(*values.values())
    chosen = []
    while missing:
        chosen.append(max(family, key=lambda item: len(values[item] & missing)))
        missing -= values[chosen[-1]]
    return chosen


def _order(item: pytest.Item) -> str:
    return hashlib.sha256(item.nodeid.encode()).hexdigest()


def _values(item: pytest.Function) -> set[tuple[object, ...]]:
    """What the item has of each parameter; names that are parametrised together are one."""
    values, params = set(), dict(item.callspec.params)
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].replace(" ", "").split(",") if isinstance(mark.args[0], str) else mark.args[0]
        values.add((*names, *(id(params.pop(name, None)) for name in names)))
    return values | {(name, id(value)) for name, value in params.items()}
