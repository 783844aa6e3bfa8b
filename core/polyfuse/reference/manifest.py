"""The interpreter's manifest: what it is, before anything of it is loaded."""

from __future__ import annotations

from polyfuse.plugin.api import API_VERSION
from polyfuse.plugin.hooks.specs import hookimpl
from polyfuse.plugin.manifest import Manifest, Offer

LAST = -1000
"""Below every other backend: it is asked only where no other one answers, or by name."""


@hookimpl
def polyfuse_manifest() -> Manifest:
    """Introduce the backend."""
    return Manifest(
        name="interpreter",
        version="0.1.0",
        distribution="polyfuse",
        api=API_VERSION,
        device_types=("*",),
        load="polyfuse.reference.backend:InterpreterBackend",
        priority={"*": LAST},
        last_resort=True,
        offers=(Offer.KERNELS,),
        summary="Executes kernels step by step with torch operations: slow, and right",
    )
