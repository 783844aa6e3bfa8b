"""The plugin `lying`, as sessions find it between the beginning and the end of `installed.installed()`."""

from __future__ import annotations

from polyfuse.plugin import API_VERSION, Manifest, hookimpl


@hookimpl
def polyfuse_manifest() -> Manifest:
    """Introduce the backend. It has no priority: it is asked only where it is named."""
    return Manifest(
        name="lying",
        version="0",
        distribution="polyfuse-lying",
        api=API_VERSION,
        device_types=("*",),
        load="polyfuse.testing.lying.installed:made",
        options={
            "backend": "The backend that is wrong; the first one for the CPU by default.",
            "defect": "A name of `polyfuse.testing.lying.DEFECTS`.",
        },
        summary="Another backend with a planted defect, for tests",
    )
