"""Functions that operators call, with recording: nothing overwrites what a later round or a caller has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from called_functions import branch, loop, running
from polyfuse.compiler.reports.report import last_reports
from recording_partitions import compiled, fresh_device, same


@pytest.mark.quick(1)
@pytest.mark.parametrize("function", (running, loop, branch))
def test_results_of_all_rounds_and_calls(function: Any) -> None:
    with fresh_device() as device, torch.no_grad():
        run = compiled(function, graph_cache=False)  # a stored one has no report of what it calls
        held = []
        for number in range(7):
            x = torch.rand(6, 8) * (1 if number % 2 else -1)
            held.append((run(x), function(x)))
        for found, expected in held:
            same(found, expected)
        assert device.recorded
    bodies = [report.recording for report in last_reports()[:-1]]
    assert any(status is not None and status.replays for status in bodies)
