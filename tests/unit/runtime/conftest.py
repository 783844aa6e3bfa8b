"""Makes a device that records of the CPU, and the helpers of this folder importable."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fake_graphs import FakeDevice, fake_graph_device

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    torch._dynamo.reset()
    with fake_graph_device() as made:
        yield made
    torch._dynamo.reset()
