"""Who generates kernels: what the hook `polyfuse_codegen` returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.plugin.backend import Backend


@dataclass(frozen=True)
class Codegen:
    """A code generator that has not been loaded yet.

    Attributes:
        load: a dotted path `"package.module:attribute"`, imported when the generator is first needed, or what
            such a path would name: a class derived from `Backend`, or a function that takes the session's
            `Settings` and returns a `Backend`.
        priority: orders generators for a device type, higher first. None: only where users name the plugin.
        last_resort: as in `Manifest`.
        plugin: the plugin that brings it; filled in by the manager.
    """

    load: str | Callable[[Settings], Backend]
    priority: int | None = None
    last_resort: bool = False
    plugin: str = ""
