"""The table of contents of the lowerings. Importing it imports every family, which fills the registry."""

from __future__ import annotations

from polyfuse.lowering.calls import collectives, functionalized, host, library, user_kernels
from polyfuse.lowering.elements import casts, creation, pointwise
from polyfuse.lowering.indexing import gather, scatter, search
from polyfuse.lowering.reductions import moments, reduction, scan
from polyfuse.lowering.registry import REGISTRY, Registry
from polyfuse.lowering.shapes import (
    col2im,
    concat_pad,
    pooling,
    pooling_max,
    strided_scatter,
    upsampling,
    upsampling_backward,
    views,
)

FAMILIES = (
    *(pointwise, casts, creation),
    *(views, strided_scatter, concat_pad, pooling, pooling_max, upsampling, upsampling_backward, col2im),
    *(reduction, moments, scan),
    *(gather, search, scatter),
    *(library, host, collectives, functionalized, user_kernels),
)
"""Modules of lowerings, one a family."""


def registry() -> Registry:
    """The filled registry."""
    return REGISTRY
