"""The states of plugins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyfuse.plugin.manifest import Manifest


class State(StrEnum):
    """The state of a plugin in a session."""

    AVAILABLE = "available"
    DISABLED = "disabled"
    REFUSED = "refused"
    FAILED = "failed"
    LOADED = "loaded"


@dataclass(frozen=True)
class PluginState:
    """One plugin as users see it. `manifest` is None when even that could not be read."""

    name: str
    distribution: str
    version: str
    state: State
    reason: str = ""
    manifest: Manifest | None = None

    @property
    def usable(self) -> bool:
        """Whether its hooks are called."""
        return self.state in (State.AVAILABLE, State.LOADED)

    def changed(self, state: State, reason: str = "") -> PluginState:
        """Return it in another state."""
        return replace(self, state=state, reason=reason)
