"""What the registry says of one model family, and how it becomes a model with inputs and a loss."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn

# Small vocabularies draw warnings about token numbers that are never used here.
transformers.logging.set_verbosity_error()

Inputs = dict[str, torch.Tensor]


class Size(enum.Enum):
    """How large a model is built.

    `REAL` keeps the published widths and cuts only depth and vocabulary; `TINY` is for tests of correctness.
    """

    REAL = "real"
    TINY = "tiny"

    def pick(self, real: int, tiny: int) -> int:
        return real if self is Size.REAL else tiny


@dataclass(frozen=True)
class Family:
    """One architecture: how to build it, what to feed it, and which input dimensions may vary.

    `sequence_dims` maps an input's name to the dimension that grows with the sequence; the batch is always
    dimension 0 of every input.
    """

    name: str
    kind: str
    build: Callable[[Size], nn.Module]
    inputs: Callable[[nn.Module, Size, int, int], Inputs]
    batch: int = 1
    seq: int = 128
    tiny_seq: int = 16
    sequence_dims: Mapping[str, int] = field(default_factory=dict)
    trains: bool = True


@dataclass(frozen=True)
class Prepared:
    """A model with inputs, ready to be compiled and called."""

    family: Family
    model: nn.Module
    inputs: Inputs

    def loss(self, output: object) -> torch.Tensor:
        return loss_of(output)


def prepare(
    family: Family,
    size: Size,
    *,
    batch: int | None = None,
    seq: int | None = None,
    train: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    device: str = "cpu",
) -> Prepared:
    """Build `family` with random weights and inputs, the same for the same seed on every device."""
    torch.manual_seed(seed)
    model = family.build(size).to(device, dtype)
    inputs = make_inputs(family, model, size, batch=batch, seq=seq, dtype=dtype, seed=seed + 1)
    inputs = {name: value.to(device) for name, value in inputs.items()}
    # The first call installs hooks under a lock, which no compiler can trace.
    model.eval()
    with torch.no_grad():
        model(**inputs)
    model.train(train)
    if not train:
        model.requires_grad_(False)
    return Prepared(family, model, inputs)


def make_inputs(
    family: Family,
    model: nn.Module,
    size: Size,
    *,
    batch: int | None = None,
    seq: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 1,
) -> Inputs:
    """Random inputs of the family for a batch and a sequence length."""
    torch.manual_seed(seed)
    length = seq if seq is not None else (family.seq if size is Size.REAL else family.tiny_seq)
    made = family.inputs(model, size, batch if batch is not None else family.batch, length)
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in made.items()}


def flatten_outputs(output: object) -> list[torch.Tensor]:
    """Every tensor in a model's output, in a fixed order."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [leaf for value in output.values() for leaf in flatten_outputs(value)]
    if isinstance(output, (tuple, list)):
        return [leaf for value in output for leaf in flatten_outputs(value)]
    return []


def loss_of(output: Any) -> torch.Tensor:
    """A scalar that depends on every floating-point output: the mean square of each, summed.

    Independent of the task, so that one function serves every family, and every output gets a gradient that
    is neither constant nor zero.
    """
    leaves = [leaf for leaf in flatten_outputs(output) if leaf.is_floating_point() and leaf.requires_grad]
    if not leaves:
        raise ValueError("no output of the model depends on its parameters")
    total = leaves[0].float().square().mean()
    for leaf in leaves[1:]:
        total = total + leaf.float().square().mean()
    return total
