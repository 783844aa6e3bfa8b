"""`make demo`: what it measures, and that it says where that means little."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch

from house.source_tree import ROOT


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["demo"]


def work(demo):
    model, x = torch.nn.Linear(4, 4).requires_grad_(False), torch.ones(2, 4)
    return demo.Work("small", "small inference", model, lambda run: lambda: [run(x)], False)


def result(demo, *speed_ups):
    return demo.Result(work(demo), (), 1.0, 2.0, 1.0, speed_ups, 0.0)


def test_turns_are_compared_with_their_neighbours(demo):
    found = demo.measure(work(demo), "eager", rounds=5)
    assert len(found.speed_ups) == 5 and all(x > 0 for x in found.speed_ups)
    assert found.largest_error == 0


def test_the_spread_is_shown_and_doubted(demo):
    table = demo.speed_table([result(demo, 2.0, 2.0, 2.0)], "polyfuse")
    assert [next(iter(column.cells)) for column in table.columns][4:6] == ["2.00 x", "2.00..2.00"]
    assert demo.doubts([result(demo, 2.0, 2.0, 2.0)], load=0.0) == []
    busy, varies = demo.doubts([result(demo, 1.0, 2.0, 3.0)], load=99.0)
    assert "busy (load 99.0" in busy and "varies from turn to turn: 1.00 to 3.00" in varies
