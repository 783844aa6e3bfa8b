"""What the backend is. Polyfuse reads this in every session, so it imports only the plugin interface."""

from __future__ import annotations

from polyfuse.plugin import Finding, Manifest, Offer, Requires, hookimpl


@hookimpl
def polyfuse_manifest() -> Manifest:
    """Introduce the backend. Without a priority it serves only those who name it."""
    return Manifest(
        name="numpy",
        version="0.1.0",
        distribution="polyfuse-numpy",
        api=(1, 0),
        device_types=("cpu",),
        load="polyfuse_numpy.backend:NumpyBackend",
        offers=(Offer.KERNELS,),
        requires=Requires(packages=("numpy>=1.26",)),
        summary="Kernels as NumPy programs: an example",
    )


@hookimpl
def polyfuse_doctor() -> list[Finding]:
    """Say which NumPy it is."""
    import numpy

    return [Finding("numpy", True, f"{numpy.__version__} at {numpy.__path__[0]}")]
