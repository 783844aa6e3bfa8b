"""The plugin's manifest and hooks. It brings no code generator: what it adds serves whichever there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polyfuse.plugin.api import API_VERSION
from polyfuse.plugin.hooks.specs import hookimpl
from polyfuse.plugin.manifest import Manifest, Offer

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.plugin.lowering import Lowering
    from polyfuse.plugin.rewriting import Rewrite


@hookimpl
def polyfuse_manifest() -> Manifest:
    """Introduce the plugin."""
    return Manifest(
        name="quantized",
        version="0.1.0",
        distribution="polyfuse",
        api=API_VERSION,
        offers=(Offer.LOWERINGS, Offer.REWRITES),
        summary="Lowerings and rewrites of torch's operators on quantised numbers",
    )


@hookimpl
def polyfuse_lowerings() -> Mapping[str, Callable[..., Any] | Lowering]:
    """Conversions between floating point and quantised numbers become part of the kernels around them."""
    from polyfuse_quantized.lowerings import LOWERINGS

    return LOWERINGS


@hookimpl
def polyfuse_rewrites() -> Sequence[Rewrite]:
    """Numbers converted to floating point and back stay as they are, and are multiplied as they are."""
    from polyfuse_quantized.product_rewrites import REWRITES as PRODUCTS
    from polyfuse_quantized.rewrites import REWRITES

    return (*REWRITES, *PRODUCTS)


@hookimpl
def polyfuse_cache_key(settings: Settings) -> Sequence[str]:
    """What is compiled depends on the text of the lowerings and rewrites, and on what multiplies bytes."""
    from pathlib import Path

    from polyfuse.base.digest import digest_files
    from polyfuse_quantized.products import available

    return [digest_files(sorted(Path(__file__).parent.glob("*.py"))), f"bytes {available()}"]
