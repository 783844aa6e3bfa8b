"""The states of plugins, and messages to users, once each, about backends that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from polyfuse.base.errors import BackendUnavailableError
from polyfuse.base.log import warn_once
from polyfuse.base.text import join_words

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.plugin.backend import Backend
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


def warn_of_refused(
    states: Sequence[PluginState], settings: Settings, device_type: str, chosen: Backend | None
) -> bool:
    """Warn of each backend that would have come before the chosen one if it only were usable here; return
    whether there is one.

    Raises:
        BackendUnavailableError: with `strict`, where the chosen one, or eager mode, would replace it.
    """
    asked = list(settings.backends)
    first = next((s.manifest for s in states if chosen is not None and s.name == chosen.name), None)
    least = first.rank(device_type) if first is not None else None
    refused = 0
    for state in states:
        if state.state is not State.REFUSED:
            continue
        rank = state.manifest.rank(device_type) if state.manifest is not None else None
        named = state.name in asked
        if not named and (rank is None or asked):
            continue
        if not (named or least is None or (rank is not None and rank > least)):
            continue
        refused += 1
        passed = chosen is None or not named or asked.index(state.name) < asked.index(chosen.name)
        serves = state.manifest is None or state.manifest.serves(device_type)
        taker = repr(chosen.name) if chosen is not None else "eager mode"
        if settings.strict and passed and serves:
            raise BackendUnavailableError(
                f"backend {state.name!r} cannot be used ({state.reason}), and `strict` does not let "
                f"{taker} replace it",
                f"correct that, set POLYFUSE_DISABLE={state.name}, or unset strict",
            )
        warn_once(
            "plugin",
            f"backend {state.name!r} cannot be used: {state.reason}; until then {taker} replaces it",
            key=f"refused {state.name}",
        )
    return bool(refused)


def warn_of_interpreted(
    states: Sequence[PluginState], settings: Settings, device_type: str, chosen: Backend
) -> None:
    """Say that nobody compiles for a type of device.

    Raises:
        BackendUnavailableError: with `strict`.
    """
    disabled = [f"{s.name!r} is disabled" for s in states if s.state is State.DISABLED]
    why = join_words(disabled) or "none is installed"
    cause = f"no backend compiles kernels for device type {device_type!r} ({why})"
    if settings.strict:
        raise BackendUnavailableError(
            f"{cause}, and `strict` does not let {chosen.name!r} interpret them",
            f"install one, or name {chosen.name!r} in `backends`",
        )
    warn_once(
        "plugin",
        f"{cause}; {chosen.name!r} interprets them, which is slow",
        key=f"interpreted {device_type}",
    )
