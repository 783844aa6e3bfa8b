"""The table of contents of the lowerings. Importing it imports every family, which fills the registry."""

from __future__ import annotations

from polyfuse.lowering import (
    attention,
    bodies,
    casts,
    collectives,
    concat_pad,
    creation,
    effects,
    folding,
    functionalized,
    grouped,
    host,
    indexing,
    library,
    matmul,
    mutation,
    pointwise,
    pooling,
    pooling_max,
    random,
    reduction,
    scan,
    scatter,
    search,
    upsampling,
    user_kernels,
    views,
)
from polyfuse.lowering.registry import REGISTRY, Registry

FAMILIES = (
    pointwise,
    casts,
    creation,
    views,
    concat_pad,
    reduction,
    scan,
    pooling,
    pooling_max,
    upsampling,
    folding,
    indexing,
    search,
    scatter,
    mutation,
    random,
    matmul,
    grouped,
    library,
    attention,
    effects,
    host,
    bodies,
    collectives,
    functionalized,
    user_kernels,
)
"""Modules of lowerings, one a family."""


def registry() -> Registry:
    """The filled registry."""
    return REGISTRY


__all__ = ["FAMILIES", "registry"]
