"""Single modules and small blocks, each alone: none may be slower than in eager mode.

Most of them take 0.1 to 20 ms in eager mode, so that neither the cost of a call nor that of a whole network
hides a slow kernel. `measure` answers one row, also what the first call cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from polyfuse_bench.backends import DYNAMO, EAGER, POLYFUSE, compiled
from polyfuse_bench.blocks.algebra import ALGEBRA
from polyfuse_bench.blocks.block import Block, converted, step
from polyfuse_bench.blocks.channels import CHANNELS
from polyfuse_bench.blocks.rows import ROWS
from polyfuse_bench.blocks.sampling import SAMPLING
from polyfuse_bench.blocks.sequences import SEQUENCES
from polyfuse_bench.blocks.values import VALUES
from polyfuse_bench.side_by_side import side_by_side
from polyfuse_bench.timing import Effort

__all__ = ["BLOCKS", "CANDIDATES", "TRAIN", "measure", "rows_of"]

_ALL = (*SAMPLING, *CHANNELS, *SEQUENCES, *VALUES, *ROWS, *ALGEBRA)
BLOCKS: Mapping[str, Block] = {block.name: block for block in _ALL}
CANDIDATES = (EAGER, DYNAMO, POLYFUSE)
"""Who is compared unless the command line says otherwise: Dynamo alone shows what kernels do not cost."""
TRAIN = "train"
"""The mode with gradients of floating-point arguments and parameters."""


def rows_of(names: list[str], modes: tuple[str, ...], dtype: str) -> list[tuple[str, str]]:
    """Names and modes of those that have gradients and take the dtype."""
    return [
        (name, mode)
        for name in names
        for mode in modes
        if (BLOCKS[name].trains or mode != TRAIN) and (BLOCKS[name].low or dtype == "float32")
    ]


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `task["name"]` in `task["mode"]` for `task["backends"]`.

    One thread is timed by the time of this process, whatever else the machine does, several by the clock.
    """
    block, mode = BLOCKS[task["name"]], task["mode"]
    torch.manual_seed(0)
    call, arguments = converted(block.make(), getattr(torch, task["dtype"]))
    first: dict[str, float] = {}

    def prepare(backend: str) -> Callable[[], Any]:
        compiled_call = compiled(call, backend)
        if mode == TRAIN:
            run = step(compiled_call, (call, arguments))
        else:
            run = lambda: compiled_call(*arguments)  # noqa: E731
        began = time.perf_counter()
        run()
        first[backend] = time.perf_counter() - began
        return run

    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    with torch.set_grad_enabled(mode == TRAIN):
        outcome = side_by_side(task["backends"], prepare, Effort(**task["effort"]), clock=clock)
    return {
        "name": block.name,
        "group": block.group,
        "mode": mode,
        "dtype": task["dtype"],
        "threads": torch.get_num_threads(),
        "first_call": first,
        **outcome,
    }
