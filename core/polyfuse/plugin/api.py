"""The version of the plugin interface, and the check of a plugin's version against it."""

from __future__ import annotations

from typing import Final

from polyfuse.base.errors import IncompatibleBackendError

# docs/decisions/plugin-interface-versions.md says what each number promises; a snapshot test keeps it.
API_VERSION: Final[tuple[int, int]] = (2, 0)


def check_api(plugin: str, wanted: tuple[int, int]) -> None:
    """Raise `IncompatibleBackendError`, in one sentence, unless a plugin built for `wanted` works here."""
    major, minor = API_VERSION
    if wanted[0] == major and wanted[1] <= minor:
        return
    asked = ".".join(map(str, wanted))
    newer = wanted > API_VERSION
    raise IncompatibleBackendError(
        f"plugin {plugin!r} is built for plugin interface {asked}, and this Polyfuse supports {major}.0 to "
        f"{major}.{minor}",
        "upgrade polyfuse" if newer else f"install a newer version of {plugin!r}",
    )
