"""The campaign of single modules and small blocks."""

from __future__ import annotations

import dataclasses

import torch
from polyfuse_bench import blocks
from polyfuse_bench.backends import EAGER
from polyfuse_bench.blocks.block import converted, layer, step
from polyfuse_bench.timing import QUICK
from torch import nn


def test_rows_are_those_that_have_gradients_and_take_the_dtype() -> None:
    names = ["one_hot", "relu", "cdist"]
    modes = ("forward", blocks.TRAIN)
    assert blocks.rows_of(names, modes, "bfloat16") == [
        ("one_hot", "forward"),
        ("relu", "forward"),
        ("relu", blocks.TRAIN),
    ]
    assert ("cdist", blocks.TRAIN) in blocks.rows_of(names, modes, "float32")


def test_a_step_answers_gradients_of_arguments_and_parameters() -> None:
    block = layer("channels", "scaled", lambda: nn.PReLU(3), 2, 3, 4, 4, last=True)
    made = converted(block.make(), torch.bfloat16)
    assert made[1][0].is_contiguous(memory_format=torch.channels_last)
    first, second = (step(made[0], made)() for _ in range(2))
    assert [tuple(gradient.shape) for gradient in first] == [(2, 3, 4, 4), (3,)]
    assert all(gradient.dtype is torch.bfloat16 for gradient in first)
    assert all(map(torch.equal, first, second))


def test_a_row_says_what_the_first_call_cost() -> None:
    effort = dataclasses.replace(QUICK, rounds=2, warmup_seconds=0.0, min_sample_seconds=0.0)
    task = {"name": "batch_norm1d", "mode": blocks.TRAIN, "dtype": "float32", "backends": [EAGER]}
    row = blocks.measure({**task, "effort": dataclasses.asdict(effort)})
    assert row["failures"] == {}
    assert [timing["name"] for timing in row["timings"]] == [EAGER]
    assert row["first_call"][EAGER] > 0
