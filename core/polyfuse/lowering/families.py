"""The table of contents of the lowerings. Importing it imports every family, which fills the registry."""

from __future__ import annotations

from polyfuse.lowering.calls import (
    attention,
    collectives,
    effects,
    functionalized,
    grouped,
    host,
    library,
    matmul,
    mutation,
    subgraphs,
    user_kernels,
)
from polyfuse.lowering.elements import casts, creation, pointwise, random
from polyfuse.lowering.indexing import gather, scatter, search
from polyfuse.lowering.reductions import reduction, scan
from polyfuse.lowering.registry import REGISTRY, Registry
from polyfuse.lowering.shapes import col2im, concat_pad, pooling, pooling_max, upsampling, views

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
    col2im,
    gather,
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
    subgraphs,
    collectives,
    functionalized,
    user_kernels,
)
"""Modules of lowerings, one a family."""


def registry() -> Registry:
    """The filled registry."""
    return REGISTRY


__all__ = ["FAMILIES", "registry"]
