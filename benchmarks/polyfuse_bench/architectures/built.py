"""What the catalogue names, and what building it gives."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

BATCH, LENGTH = 2, 13


@dataclass(frozen=True)
class Entry:
    """One architecture by its library's name for it; `family` groups those that share code."""

    library: str
    name: str
    family: str

    @property
    def key(self) -> str:
        return f"{self.library}:{self.name}"


@dataclass(frozen=True)
class Built:
    """A model with random weights, in evaluation mode, and what it is called with."""

    model: nn.Module
    inputs: Mapping[str, Any]
    note: str = ""


# What names of models say of a size, the smallest first.
SIZES = (
    "test", "zepto", "atto", "femto", "pico", "_xxt", "xxs", "nano", "_xs", "_xt", "tiny", "_t", "_s",
    "small", "micro", "mini", "_m", "base", "_b", "_l", "large", "_h", "huge", "giant",
)  # fmt: skip


def small_first(name: str) -> tuple[int, int, str]:
    """A key that sorts names of one family by what they say of the models' sizes."""
    rank = next((position for position, part in enumerate(SIZES) if part in name), len(SIZES) // 2)
    number = re.search(r"\d+", name)
    return rank, int(number.group()) if number else 0, name


class NotBuildable(Exception):
    """No small random model could be made, or called in eager mode; the message says why."""


def tensors_of(output: Any, seen: set[int] | None = None) -> list[torch.Tensor]:
    """Every tensor in an output, in a fixed order; caches of keys and values are not looked into."""
    seen = set() if seen is None else seen
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [leaf for value in output.values() for leaf in tensors_of(value, seen)]
    if isinstance(output, Sequence) and not isinstance(output, (str, bytes)):
        return [leaf for value in output for leaf in tensors_of(value, seen)]
    if hasattr(output, "__dataclass_fields__"):
        return [
            leaf
            for name in output.__dataclass_fields__
            for leaf in tensors_of(getattr(output, name, None), seen)
        ]
    if hasattr(output, "mode") and hasattr(output, "mean"):
        # a distribution, as autoencoders answer
        return tensors_of([value for value in vars(output).values() if isinstance(value, torch.Tensor)], seen)
    return []


def differentiable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point()


def copied(model: nn.Module) -> nn.Module:
    """A copy that shares nothing.

    Tensors that modules keep beside their parameters, such as normalised weights, lose their history, with
    which they could not be copied.
    """
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                vars(module)[name] = value.detach()
    return copy.deepcopy(model)


def works(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Call a copy of the model once, since some keep tensors of a call.

    Raises what the call raises, or `NotBuildable` where there is nothing to compare.
    """
    outputs = tensors_of(copied(model)(**inputs))
    if not any(differentiable(leaf) for leaf in outputs):
        raise NotBuildable("no output that depends on a parameter")
    if any(leaf.is_floating_point() and leaf.numel() and not torch.isfinite(leaf).any() for leaf in outputs):
        raise NotBuildable("an output without a finite number")
