"""Functions that operators call, with recording: nothing overwrites what a later round or a caller has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from polyfuse.compiler.report import last_reports
from recording_in_parts import compiled, fresh_device, same


def running(x: torch.Tensor) -> Any:
    return scan(lambda carry, row: (carry * 0.9 + row.softmax(-1), carry + row), x[0], x, dim=0)


def loop(x: torch.Tensor) -> Any:
    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x.sin() + x.mean()), (start, x))[1]


def branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.softmax(-1) + 1, lambda x: x.cos() * 2, (x,))


@pytest.mark.parametrize("function", (running, loop, branch))
def test_results_of_all_rounds_and_calls(function: Any) -> None:
    with fresh_device() as device, torch.no_grad():
        run = compiled(function)
        held = []
        for number in range(7):
            x = torch.rand(6, 8) * (1 if number % 2 else -1)
            held.append((run(x), function(x)))
        for found, expected in held:
            same(found, expected)
        assert device.recorded
    bodies = [report.recording for report in last_reports()[:-1]]
    assert any(status is not None and status.replays for status in bodies)
