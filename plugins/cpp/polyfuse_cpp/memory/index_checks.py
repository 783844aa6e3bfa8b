"""Checks of indices from data, done where the index is limited: an index inside its limits costs one test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyfuse.ir.ops import CHECK_MODE
from polyfuse.ir.statements import Compute, Constant, Statement, Store
from polyfuse.ir.types import DType
from polyfuse_cpp.facts import Facts


@dataclass(frozen=True)
class IndexCheck:
    """A store to a status wherever the value `index` is not in 0 .. `last`.

    Where `size` is the name of a value, it is added to an index below zero first.
    """

    store: Store
    index: str
    last: str
    size: str = ""


def limit_checks(facts: Facts) -> Mapping[str, IndexCheck]:
    """The checks ``limited != index``, by the name of ``limited = minimum(maximum(index, 0), last)``."""
    made = {s.targets[0]: s for s in facts.statements if len(s.targets) == 1}
    positions = {name: position for position, name in enumerate(made)}
    found: dict[str, IndexCheck | None] = {}
    for stmt in facts.statements:
        if not isinstance(stmt, Store) or stmt.mode != CHECK_MODE or stmt.indirect:
            continue
        for name, check in _limited(stmt, made):
            # the check is written with the limit, where what it stores has to be known
            early = positions[stmt.value] < positions[name]
            if early and facts.depends[stmt.value] <= facts.depends[name]:
                found[name] = None if name in found else check
    return {name: check for name, check in found.items() if check is not None}


def _limited(store: Store, made: Mapping[str, Statement]) -> list[tuple[str, IndexCheck]]:
    """The name of the limited index that a check compares with the index, and the check."""
    test = made.get(store.mask or "")
    if test is None or test.op != "ne":
        return []
    for name, index in (test.args, test.args[::-1]):
        smaller = made.get(name)
        if smaller is None or smaller.op != "minimum" or smaller.dtype is not DType.i64:
            continue
        for inner, last in (smaller.args, smaller.args[::-1]):
            larger = made.get(inner)
            if larger is None or larger.op != "maximum" or index not in larger.args:
                continue
            if _is_zero(made.get(larger.args[larger.args[0] == index])):
                return [(name, IndexCheck(store, *_before_wrapping(index, last, made)))]
    return []


def _before_wrapping(index: str, last: str, made: Mapping[str, Statement]) -> tuple[str, str, str]:
    """The index in ``where(index < 0, index + size, index)``, the last one, and the size."""
    match made.get(index):
        case Compute(op="where", args=(test, wrapped, plain)):
            pass
        case _:
            return index, last, ""
    compared, added = made.get(test), made.get(wrapped)
    if compared is None or added is None or compared.op != "lt" or added.op != "add":
        return index, last, ""
    size = added.args[added.args[0] == plain]
    if compared.args[0] != plain or plain not in added.args or not _is_zero(made.get(compared.args[1])):
        return index, last, ""
    return plain, last, size


def _is_zero(stmt: Statement | None) -> bool:
    return isinstance(stmt, Constant) and stmt.value == 0
