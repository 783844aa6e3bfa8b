"""The door between the core and its code generators: the whole public interface of a plugin.

A plugin is a distribution with an entry point in the group `polyfuse.backends`. The entry point names a light
module which holds a hook implementation `polyfuse_manifest`; the manifest names the class, derived from
`Backend`, that is imported on first use. `docs/writing-a-backend.md` walks through one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyfuse.base.config import Config
from polyfuse.base.lazy import attribute
from polyfuse.plugin.api import API_VERSION, check_api
from polyfuse.plugin.backend import Backend
from polyfuse.plugin.choices import CallSite, Choice, ReplacementCalls, TemplateSource
from polyfuse.plugin.claims import Claim, No, Yes, all_of
from polyfuse.plugin.codegen import Codegen
from polyfuse.plugin.deprecation import replacements
from polyfuse.plugin.fusion import FusionPair, FusionRule
from polyfuse.plugin.hooks.registry import register, unregister
from polyfuse.plugin.hooks.specs import hookimpl
from polyfuse.plugin.host import HostCall, HostProgram
from polyfuse.plugin.lowering import Lowering, LoweringContext, TensorValue
from polyfuse.plugin.manifest import Finding, Manifest, Offer, Requires
from polyfuse.plugin.rewriting import Rewrite, RewriteContext
from polyfuse.plugin.session.discovery import ENTRY_POINT_GROUP
from polyfuse.plugin.session.extensions import Extensions, Offered
from polyfuse.plugin.session.fusion_rules import FusionRules
from polyfuse.plugin.session.manager import PluginManager
from polyfuse.plugin.session.states import PluginState, State
from polyfuse.plugin.source import Launchable, Source
from polyfuse.plugin.target_info import TargetInfo
from polyfuse.plugin.timing import DeviceTimer, HostTimer, Timer

if TYPE_CHECKING:
    from polyfuse.runtime.devices.device import Device, DeviceProperties, Event, Limits, MemoryStatistics
    from polyfuse.runtime.devices.graphs import DeviceGraph, GraphRecorder
    from polyfuse.runtime.devices.registry import device_of

__all__ = [
    "API_VERSION",
    "Backend",
    "CallSite",
    "Choice",
    "Claim",
    "Codegen",
    "Config",
    "Device",
    "DeviceGraph",
    "DeviceProperties",
    "DeviceTimer",
    "ENTRY_POINT_GROUP",
    "Event",
    "Extensions",
    "Finding",
    "FusionPair",
    "FusionRule",
    "FusionRules",
    "GraphRecorder",
    "HostCall",
    "HostProgram",
    "HostTimer",
    "Launchable",
    "Limits",
    "Lowering",
    "LoweringContext",
    "Manifest",
    "MemoryStatistics",
    "No",
    "Offer",
    "Offered",
    "PluginManager",
    "PluginState",
    "ReplacementCalls",
    "Requires",
    "Rewrite",
    "RewriteContext",
    "Source",
    "State",
    "TargetInfo",
    "TemplateSource",
    "TensorValue",
    "Timer",
    "Yes",
    "all_of",
    "check_api",
    "device_of",
    "hookimpl",
    "register",
    "unregister",
]

_DEVICE = "polyfuse.runtime.devices.device"
# What imports torch is imported when it is asked for: manifests are read without it.
_PLACES = {
    "Device": f"{_DEVICE}:Device",
    "DeviceGraph": "polyfuse.runtime.devices.graphs:DeviceGraph",
    "DeviceProperties": f"{_DEVICE}:DeviceProperties",
    "Event": f"{_DEVICE}:Event",
    "GraphRecorder": "polyfuse.runtime.devices.graphs:GraphRecorder",
    "Limits": f"{_DEVICE}:Limits",
    "MemoryStatistics": f"{_DEVICE}:MemoryStatistics",
    "device_of": "polyfuse.runtime.devices.registry:device_of",
}


def __getattr__(name: str) -> object:
    return attribute(__name__, {**_PLACES, **replacements(name)}, name)
