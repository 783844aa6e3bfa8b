"""Random models of `torchvision` on small pictures, without detection, which answers lists of any length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from polyfuse_bench.architectures.built import BATCH, Built, Entry, NotBuildable, small_first, works

LEFT_OUT = ("quantization", "detection")
MOST_PARAMETERS = 60_000_000


def entries() -> list[Entry]:
    import torchvision

    found = []
    for name in sorted(torchvision.models.list_models(), key=small_first):
        family = torchvision.models.get_model_builder(name).__module__.removeprefix("torchvision.models.")
        if not family.startswith(LEFT_OUT):
            found.append(Entry("torchvision", name, family))
    return found


def build(name: str, seed: int) -> Built:
    reasons = ["no way to call it"]
    for arguments, shape in _ways(name):
        try:
            torch.manual_seed(seed)
            model = _model(name, arguments)
            torch.manual_seed(seed + 1)
            inputs = _inputs(name, shape)
            works(model, inputs)
            return Built(model, inputs)
        except NotBuildable:
            raise
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {error}"[:200])
    raise NotBuildable(reasons[-1])


def _model(name: str, arguments: dict[str, Any]) -> Any:
    import torchvision

    model = torchvision.models.get_model(name, weights=None, **arguments).eval()
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > MOST_PARAMETERS:
        raise NotBuildable(f"{count / 1e6:.0f} million parameters")
    return model


def _ways(name: str) -> Iterator[tuple[dict[str, Any], tuple[int, ...]]]:
    classes: dict[str, Any] = {"num_classes": 10}
    if name.startswith("raft"):
        yield {}, (3, 128, 128)
        return
    if name.startswith(("deeplab", "fcn", "lraspp")):
        yield {**classes, "weights_backbone": None}, (3, 64, 64)
        return
    if name in ("googlenet", "inception_v3"):
        yield {**classes, "init_weights": False, "aux_logits": False}, (3, 96, 96)
    yield {**classes, "image_size": 32}, (3, 32, 32)
    yield {**classes, "input_size": (64, 64)}, (3, 64, 64)
    yield classes, (3, 64, 64)
    yield classes, (3, 4, 64, 64)
    yield classes, (3, 16, 112, 112)
    yield classes, (3, 16, 224, 224)
    yield classes, (3, 224, 224)


def _inputs(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    if name.startswith("raft"):
        return {
            "image1": torch.randn(BATCH, *shape),
            "image2": torch.randn(BATCH, *shape),
            "num_flow_updates": 2,
        }
    return {"input" if name.startswith("lraspp") else "x": torch.randn(BATCH, *shape)}
