"""What the plugin is, and its hooks. Polyfuse reads this in every session, so it imports only the plugin
interface.
"""

from __future__ import annotations

from polyfuse.plugin import Finding, Manifest, Offer, Requires, hookimpl


@hookimpl
def polyfuse_manifest() -> Manifest:
    """Introduce the backend. Without a priority it serves only those who name it."""
    return Manifest(
        name="numpy",
        version="0.1.0",
        distribution="polyfuse-numpy",
        api=(2, 0),
        device_types=("cpu",),
        load="polyfuse_numpy.backend:NumpyBackend",
        offers=(Offer.KERNELS, Offer.LOWERINGS, Offer.REWRITES, Offer.CHOICES),
        requires=Requires(packages=("numpy>=1.26",)),
        summary="Kernels as NumPy programs: an example",
    )


@hookimpl
def polyfuse_doctor() -> list[Finding]:
    """Say which NumPy it is."""
    import numpy

    return [Finding("numpy", True, f"{numpy.__version__} at {numpy.__path__[0]}")]


@hookimpl
def polyfuse_lowerings() -> dict[str, object]:
    """Bring the lowerings of operators."""
    from polyfuse_numpy import lowerings, templates

    return lowerings.LOWERINGS | templates.LOWERINGS


@hookimpl
def polyfuse_choices(device_type: str) -> tuple[object, ...]:
    """Offer a template for an operator."""
    from polyfuse_numpy.templates import CHOICES

    return CHOICES if device_type == "cpu" else ()


@hookimpl
def polyfuse_rewrites() -> tuple[object, ...]:
    """Bring rewrites of the captured graph."""
    from polyfuse_numpy.rewrites import REWRITES

    return REWRITES


@hookimpl
def polyfuse_cache_key() -> list[str]:
    """Say which lowerings and rewrites these are: with others, what was stored is not used."""
    return ["lowerings and rewrites of 0.1.0"]
