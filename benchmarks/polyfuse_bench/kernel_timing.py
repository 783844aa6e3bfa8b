"""Time one kernel of the set at one size, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from polyfuse_bench.backends import compiled
from polyfuse_bench.devices import CPU, waiter
from polyfuse_bench.kernels import KERNELS, runner
from polyfuse_bench.kernels.case import Arguments
from polyfuse_bench.side_by_side import side_by_side
from polyfuse_bench.tensors import bytes_in, bytes_moved, clone_tree
from polyfuse_bench.timing import Effort


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `task["name"]` at `task["size"]` for `task["backends"]`."""
    case = KERNELS[task["name"]]
    device = task.get("device", CPU)
    torch.manual_seed(0)
    with torch.device(device):
        arguments = case.arguments(task["size"])
    owned: dict[str, Arguments] = {}

    def prepare(backend: str) -> Any:
        # Each candidate owns its arguments: a kernel that writes into them must not disturb the others.
        owned[backend] = clone_tree(arguments)
        torch.manual_seed(1)
        # as users call it; with `dynamic=False` torch patches its settings at each call, for 4.6 us
        call = compiled(case.function, backend, dynamic=None)
        return runner(case, call, owned[backend])

    with torch.set_grad_enabled(case.backward):
        written = owned.get if case.mutates else None
        outcome = side_by_side(
            task["backends"], prepare, Effort(**task["effort"]), written=written, wait=waiter(device)
        )
        moved_bytes = bytes_moved(case.function, arguments)
    return {
        "name": case.name,
        "group": case.group,
        "size": task["size"],
        "train": case.backward,
        "argument_bytes": bytes_in(arguments),
        "moved_bytes": moved_bytes,
        **outcome,
    }
