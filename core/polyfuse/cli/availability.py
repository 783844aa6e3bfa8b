"""Which plugins can be used on this machine, as `polyfuse backends` and `polyfuse doctor` both say it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from polyfuse.base.errors import PolyfuseError
from polyfuse.plugin import PluginManager, PluginState, State
from polyfuse.torch_compat.devices.present import is_present


class PluginStatus(StrEnum):
    """What a user can expect of a plugin on this machine."""

    READY = "ready"
    ABSENT_DEVICE = "not applicable here"
    DISABLED = "disabled"
    UNUSABLE = "unusable"
    FAILED = "failed"


@dataclass(frozen=True)
class Availability:
    """A plugin as users see it.

    Attributes:
        plugin: what the manager knows of it.
        status: whether it can be used.
        reason: why it cannot; empty if it can.
        fix: what a user can do about it; often nothing.
    """

    plugin: PluginState
    status: PluginStatus
    reason: str = ""
    fix: str = ""

    @property
    def device_types(self) -> tuple[str, ...]:
        """The device types that it serves, as its manifest lists them."""
        return self.plugin.manifest.device_types if self.plugin.manifest is not None else ()


def status_of(manager: PluginManager, name: str, load: bool) -> Availability:
    """How a plugin stands.

    Args:
        load: load its code generator, if a device that it serves is here: it may find that something is
            missing that its manifest does not list.
    """
    state = manager.state(name)
    devices = state.manifest.device_types if state.manifest is not None else ()
    here = not devices or any(device in ("*", "cpu") or is_present(device) for device in devices)
    fix = ""
    if (
        state.state is State.AVAILABLE
        and here
        and load
        and state.manifest is not None
        and state.manifest.load
    ):
        try:
            manager.backend(name)
        except PolyfuseError as error:
            fix = error.fix
        except Exception as error:  # with `strict` the manager raises what the plugin raised
            return Availability(state, PluginStatus.FAILED, f"loading raised {type(error).__name__}: {error}")
        state = manager.state(name)
    if state.state is State.DISABLED:
        return Availability(state, PluginStatus.DISABLED, state.reason)
    if not here and state.state is not State.FAILED:
        return Availability(
            state, PluginStatus.ABSENT_DEVICE, f"no {' or '.join(devices)} device on this machine"
        )
    if state.state is State.REFUSED:
        cause, _, remedy = state.reason.partition("; ")
        return Availability(state, PluginStatus.UNUSABLE, cause, fix or remedy)
    if state.state is State.FAILED:
        return Availability(state, PluginStatus.FAILED, state.reason, "report it to the plugin's author")
    return Availability(state, PluginStatus.READY)


def in_order(found: Iterable[Availability], manager: PluginManager, device_type: str) -> tuple[str, ...]:
    """The names of those that are ready for a device type, in the order in which they are asked; those that
    only interpret kernels are left out.
    """
    ready = {
        item.plugin.name
        for item in found
        if item.status is PluginStatus.READY
        and item.plugin.manifest is not None
        and not item.plugin.manifest.last_resort
    }
    return tuple(name for name in manager.order(device_type) if name in ready)
