"""Small random models of `timm`: from every family the members that are smallest by their names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from polyfuse_bench.architectures.built import BATCH, Built, Entry, NotBuildable, small_first, works

MEMBERS = 4
MOST_PARAMETERS = 60_000_000
# Fewer layers where the family's constructor takes their number under one of these names.
SHALLOW: tuple[dict[str, Any], ...] = (
    {"depth": 2},
    {"depths": (1, 1, 1, 1)},
    {"layers": (1, 1, 1, 1)},
    {"depths": (1, 1, 1)},
    {},
)


def entries() -> list[Entry]:
    import timm

    found = []
    for family in timm.list_modules():
        names = sorted(timm.list_models(module=family), key=small_first)
        found += [Entry("timm", name, family) for name in names[:MEMBERS]]
    return found


def build(name: str, seed: int) -> Built:
    """The model with random weights, with as few layers and as small a picture as it takes."""
    reasons = []
    for arguments, size in _ways():
        try:
            torch.manual_seed(seed)
            model = _model(name, arguments, size)
            torch.manual_seed(seed + 1)
            channels, height, width = model.default_cfg.get("input_size", (3, 224, 224))
            inputs = {"x": torch.randn(BATCH, channels, size or height, size or width)}
            works(_Called(model), inputs)
            return Built(_Called(model), inputs)
        except Exception as error:
            reasons.append(
                f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[
                    :200
                ]
            )
    raise NotBuildable(reasons[-1])


class _Called(torch.nn.Module):
    """The model under the one name of an input, whatever the family calls it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x)


def _ways() -> Iterator[tuple[dict[str, Any], int]]:
    for arguments in SHALLOW:
        yield {**arguments, "img_size": 64}, 64
        yield arguments, 64
    for size in (96, 128, 224):
        yield {"img_size": size}, size
        yield {}, size
    yield {}, 0


def _model(name: str, arguments: dict[str, Any], size: int) -> Any:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=10, **arguments)
    if sum(parameter.numel() for parameter in model.parameters()) > MOST_PARAMETERS:
        raise NotBuildable("too large")
    with contextlib.suppress(AttributeError):
        model.set_grad_checkpointing(False)
    return model.eval()
