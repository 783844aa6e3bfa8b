"""Statuses of checks: zero when a call gets one, its own alone, and the next one's if nothing was wrong."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from polyfuse.runtime.checks import lend_status, return_status

ROWS = (("IndexError", "index {index} of {size}", 5), ("RuntimeError", "another", 7))


def test_what_is_still_zero_serves_again() -> None:
    first, other = lend_status(2), lend_status(2)
    assert first.data_ptr() != other.data_ptr() and first.data_ptr() % 64 == 0
    assert first.tolist() == [0, 0] and lend_status(1).tolist() == [0]
    return_status(first, ROWS)
    assert lend_status(2) is first


def test_what_says_that_something_is_wrong_does_not() -> None:
    status = lend_status(2)
    status[0] = 9 | 1 << 62
    with pytest.raises(IndexError, match=r"^index 9 of 5$"):
        return_status(status, ROWS)
    again = lend_status(2)
    assert again is not status and again.tolist() == [0, 0]
    again[1] = -3
    with pytest.raises(RuntimeError, match=r"^another$"):
        return_status(again, ROWS)


@pytest.mark.parametrize("backend", ["interpreter", "cpp"])
def test_threads_raise_for_their_own_indices_alone(backend: str) -> None:
    torch.compiler.reset()
    run = torch.compile(
        lambda x, i: x[i] * 2, backend="polyfuse", fullgraph=True, options={"backends": (backend,)}
    )
    x, good = torch.randn(5, 4), torch.tensor([4, 0, -5])
    wanted = run(x, good)
    faults: list[Any] = []

    def call(wrong: bool) -> None:
        index = good + 9 if wrong else good
        for _ in range(50):
            try:
                found = run(x, index)
            except IndexError:
                found = None
            if (found is None) is not wrong or (found is not None and not torch.equal(found, wanted)):
                faults.append((wrong, found))

    threads = [threading.Thread(target=call, args=(number % 2 == 1,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
