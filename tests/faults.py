"""Ten kinds of faults that a method of a plugin may have, for tests of its guards."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

__all__ = ["FAULTS"]


class Unprintable(RuntimeError):
    def __str__(self) -> str:
        raise SystemExit(4)


class Hostile(list[object]):
    """An answer that ends the process when it is looked at."""

    def __iter__(self) -> Any:
        raise SystemExit(5)

    def __len__(self) -> int:
        raise SystemExit(5)

    def __bool__(self) -> bool:
        raise SystemExit(5)


def raises(error: BaseException) -> Callable[[], Any]:
    def fault() -> Any:
        raise error

    return fault


def recursion() -> Any:
    """Garbage of other tests is not collected meanwhile: what is called as an object goes would find no stack
    left, nor would pytest, which then says that this test failed."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return endless()
    finally:
        if collects:
            gc.enable()


def endless() -> Any:
    return endless()


FAULTS: dict[str, Callable[[], Any]] = {
    "an error": raises(ValueError("it is broken")),
    "an exit": raises(SystemExit(3)),
    "an exit without a status": raises(SystemExit()),
    "a stop": raises(StopIteration(1)),
    "a failed assertion": raises(AssertionError()),
    "endless recursion": recursion,
    "an error that cannot be printed": raises(Unprintable()),
    "None": lambda: None,
    "nonsense": lambda: object(),
    "an answer that ends the process": lambda: Hostile([1]),
}
