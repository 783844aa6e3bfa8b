"""Copies of frozen records with some fields changed."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

_R = TypeVar("_R")


def changed(record: _R, **values: Any) -> _R:
    """`dataclasses.replace` for records that only hold what they were given.

    A frozen one sets each field by a call of its own, which takes most of the time. What a record computed of
    its fields is not copied.

    Raises:
        TypeError: a field that there is not, or a record that does more when it is made.
    """
    kind: Any = type(record)
    names = _plain_fields(kind)
    new = object.__new__(kind)
    held = vars(new)
    held.update(vars(record))
    if len(held) != len(names):
        for name in held.keys() - names:
            del held[name]
    held.update(values)
    if len(held) != len(names):
        raise TypeError(f"{kind.__name__} has no field {', '.join(values.keys() - names)}")
    return new


def alike(one: Any, two: Any, *apart: str) -> bool:
    """Whether two records are equal but for some fields."""
    kind: Any = type(one)
    names = _plain_fields(kind)
    if type(two) is not kind:
        return False
    for name in names:
        if name not in apart:
            first, second = getattr(one, name), getattr(two, name)
            if first is not second and first != second:
                return False
    return True


@cache
def _plain_fields(kind: type) -> frozenset[str]:
    if hasattr(kind, "__post_init__") or not hasattr(kind, "__dataclass_fields__"):
        raise TypeError(f"{kind.__name__} is not made of its fields alone")
    return frozenset(item.name for item in fields(kind))
