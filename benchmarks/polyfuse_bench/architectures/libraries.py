"""Importing the libraries whose architectures are tried, where they are installed."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import warnings
from types import ModuleType

# Schemas that `torchvision` describes at import even where its compiled part does not load, as with a build
# of torch for another device: without them nothing of it, and nothing of what imports it, could be used.
_OF_TORCHVISION = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


@functools.cache
def library(name: str) -> ModuleType | None:
    """The imported library, or None where it is not installed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name != "torchvision":
            library("torchvision")
        try:
            module = importlib.import_module(name)
        except RuntimeError:
            if name != "torchvision":
                raise
            module = _with_schemas()
        except ImportError:
            return None
    if name in ("transformers", "diffusers"):
        importlib.import_module(f"{name}.utils.logging").set_verbosity(50)
    return module


_DECLARED: list[object] = []


def _with_schemas() -> ModuleType | None:
    import torch

    declared = torch.library.Library("torchvision", "FRAGMENT")
    _DECLARED.append(declared)
    for schema in _OF_TORCHVISION:
        with contextlib.suppress(RuntimeError):
            declared.define(schema)
    try:
        return importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        return None
