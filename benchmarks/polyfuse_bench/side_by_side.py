"""One comparison: the same work by every backend, checked against eager, timed in interleaved rounds."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from polyfuse_bench.alarm import limited
from polyfuse_bench.backends import EAGER
from polyfuse_bench.child import first_line
from polyfuse_bench.tensors import clone_tree, relative_error
from polyfuse_bench.timing import Clock, Effort, compare, nothing
from polyfuse_bench.turns import turn

_MORE_CALLS = 3
"""Calls after the first, in which a backend may do what it puts off (recording a device's work), and fail."""


def side_by_side(
    backends: Sequence[str],
    prepare: Callable[[str], Callable[[], Any]],
    effort: Effort,
    *,
    written: Callable[[str], Any] | None = None,
    wait: Callable[[], Any] = nothing,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """Timings, errors and failures of each backend.

    `prepare(backend)` answers a call that does the work. Eager is always prepared first: its result is the
    reference for the others' errors. A backend that raises, or whose first calls take longer than the
    effort's patience, is left out of the timing. Work that writes into its arguments gives no result:
    `written(backend)` then answers what to compare. `wait` returns when a device has done all that it was
    given. `clock` is what `compare` takes.
    """

    def late() -> NoReturn:
        raise TimeoutError(f"its first calls took longer than {effort.patience:g} seconds")

    ordered = [EAGER, *(name for name in backends if name != EAGER)]
    calls: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    failures: dict[str, str] = {}
    expected: Any = None
    for name in ordered:
        try:
            with limited(effort.patience, late):
                call = prepare(name)
                result = call()
                result = clone_tree(result if written is None else written(name))
                for _ in range(_MORE_CALLS):
                    call()
                wait()
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {first_line(error)}"
            continue
        if name == EAGER:
            expected = result
        else:
            errors[name] = relative_error(result, expected)
        if name in backends:
            calls[name] = call
    with turn():
        timings = compare(calls, effort, wait, clock).timings if calls else ()
    return {
        "timings": [dataclasses.asdict(timing) for timing in timings],
        "errors": errors,
        "failures": failures,
    }
