"""Guards that say what an earlier one says, which Dynamo adds again wherever it meets the same value."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

_COMPARED = (str, int, bool, bytes, type(None))
"""Types of arguments that mean the same when they are equal; others must be one object."""

_INDEX = "_polyfuse_meanings"
"""Attribute of a set: its guards by what they say, and some that were taken out."""


def added_once(add: Callable[..., None]) -> Callable[..., None]:
    """`GuardsSet.add`, leaving out what a guard of the set says already.

    torch means to leave these out too. But it compares guards with the line of the program they came from,
    which a guard that is about to be added does not have yet, and by identity functions with arguments, which
    are made anew for each guard. So scans in Mamba leave 4340 guards that say 530 things.

    Args:
        add: torch's own method of a set and a guard.
    """

    def added(self: Any, guard: Any, **named: Any) -> None:
        known: dict[Hashable, Any] | None = vars(self).get(_INDEX)
        if known is None:
            known = {_meaning(other): other for other in self.inner}
            setattr(self, _INDEX, known)
        said = _meaning(guard)
        # torch takes guards out again, for each constant that it was slow to look at
        earlier = known.get(said)
        if earlier is not None and earlier in self.inner:
            return
        add(self, guard, **named)
        known[said] = guard

    return added


def _meaning(guard: Any) -> Hashable:
    """What a guard compares with what: its source, and what makes the check, with its arguments."""
    makes = guard.create_fn
    said = guard.originating_source, makes
    if type(makes) is partial:
        named = tuple((name, _argument(value)) for name, value in sorted(makes.keywords.items()))
        said = guard.originating_source, (makes.func, tuple(map(_argument, makes.args)), named)
    try:
        hash(said)
    except TypeError:  # a source holds the key of a container, which may be anything
        return id(guard)
    return said


def _argument(value: Any) -> Hashable:
    from torch._guards import Source

    # 1 and True are equal and are not the same argument
    return (type(value), value) if type(value) in _COMPARED or isinstance(value, Source) else id(value)
