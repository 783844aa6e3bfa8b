"""A process that compiles a few functions in a shared folder, for tests that kill, flood and disturb it:
prints `begins`, and `right` when all results are.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import torch


def functions(count: int) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Functions that differ in a number, so that each has a kernel of its own."""
    for number in range(count):

        def f(x: torch.Tensor, number: int = number) -> torch.Tensor:
            return torch.softmax(x * (number + 2), -1) + number

        yield f


def work(count: int) -> None:
    x = torch.randn(5, 30)
    for f in functions(count):
        run = torch.compile(f, backend="polyfuse", dynamic=False)
        torch.testing.assert_close(run(x), f(x))


def main() -> None:
    count, threads = int(sys.argv[1]), int(sys.argv[2])
    print("begins", flush=True)
    torch.set_num_threads(1)
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work(count)
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=guarded) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
    print("right")


if __name__ == "__main__":
    main()
