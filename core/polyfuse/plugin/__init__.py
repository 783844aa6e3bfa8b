"""The door between the core and its code generators: the whole public interface of a plugin.

A plugin is a distribution with an entry point in the group `polyfuse.backends`. The entry point names a light
module which holds a hook implementation `polyfuse_manifest`; the manifest names the class, derived from
`Backend`, that is imported on first use. `docs/writing-a-backend.md` walks through one.
"""

from __future__ import annotations

from polyfuse.base.config import Config
from polyfuse.plugin.api import API_VERSION, check_api
from polyfuse.plugin.backend import Backend
from polyfuse.plugin.choices import CallSite, Choice, ReplacementCalls, TemplateSource
from polyfuse.plugin.claims import Claim, No, Yes, all_of
from polyfuse.plugin.codegen import Codegen
from polyfuse.plugin.fusion import FusionPair, FusionRule
from polyfuse.plugin.hooks.registry import register, unregister
from polyfuse.plugin.hooks.specs import hookimpl
from polyfuse.plugin.host import HostCall, HostProgram
from polyfuse.plugin.lowering import Lowering, LoweringContext, TensorValue
from polyfuse.plugin.manifest import Finding, Manifest, Offer, Requires
from polyfuse.plugin.rewriting import Rewrite, RewriteContext
from polyfuse.plugin.session.discovery import ENTRY_POINT_GROUP
from polyfuse.plugin.session.extensions import Extensions, Offered
from polyfuse.plugin.session.manager import PluginManager
from polyfuse.plugin.session.states import PluginState, State
from polyfuse.plugin.source import Launchable, Source
from polyfuse.plugin.target_info import TargetInfo
from polyfuse.plugin.timing import DeviceTimer, HostTimer, Timer

__all__ = [
    "API_VERSION",
    "Backend",
    "CallSite",
    "Choice",
    "Claim",
    "Codegen",
    "Config",
    "DeviceTimer",
    "ENTRY_POINT_GROUP",
    "Extensions",
    "Finding",
    "FusionPair",
    "FusionRule",
    "HostCall",
    "HostProgram",
    "HostTimer",
    "Launchable",
    "Lowering",
    "LoweringContext",
    "Manifest",
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
    "hookimpl",
    "register",
    "unregister",
]
