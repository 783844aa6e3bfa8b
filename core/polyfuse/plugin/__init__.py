"""The public interface of plugins, and the only package of the core that they import.
Tests of plugins use `polyfuse.testing` too.

A plugin is a distribution with an entry point in the group `polyfuse.backends`. The entry point names a light
module which holds a hook implementation `polyfuse_manifest`; the manifest names the class, derived from
`Backend`, that is imported on first use. `docs/writing-a-backend.md` walks through one.

Besides the hooks and what they exchange, the representation of kernels is here (`Kernel`, its statements,
nodes and indices, the tables of operations), `kit` with what code generators share, errors and settings.
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
from polyfuse.plugin.lowering import Lowering, LoweringContext, TensorValue
from polyfuse.plugin.manifest import Finding, Manifest, Offer, Requires
from polyfuse.plugin.rewriting import Rewrite, RewriteContext
from polyfuse.plugin.session.discovery import ENTRY_POINT_GROUP
from polyfuse.plugin.session.extensions import Extensions, Offered
from polyfuse.plugin.session.fusion_rules import FusionRules
from polyfuse.plugin.session.manager import PluginManager
from polyfuse.plugin.session.states import PluginState, State
from polyfuse.plugin.source import (
    Expected,
    HostCall,
    Launchable,
    PackableKernel,
    Source,
    WrittenKernel,
)
from polyfuse.plugin.target_info import TargetInfo
from polyfuse.plugin.timing import DeviceTimer, HostTimer, Timer

if TYPE_CHECKING:
    from polyfuse import kit as kit
    from polyfuse.base.errors import (
        BackendUnavailableError,
        KernelBuildError,
        KernelLaunchError,
        KernelLoadError,
        UnsupportedError,
    )
    from polyfuse.base.process import run_program
    from polyfuse.base.settings import Settings, environment
    from polyfuse.ir.expr import Expr, apply, loads, walk
    from polyfuse.ir.interpreter.interpret import run_kernel
    from polyfuse.ir.kernel import Alias, Kernel, KernelArg, KernelPart, RowBuffer, Section
    from polyfuse.ir.nodes import (
        Buffer,
        ExternCall,
        LoopNode,
        Node,
        Pointwise,
        Reduction,
        Scan,
        Scatter,
        TemplateCall,
        View,
    )
    from polyfuse.ir.ops import (
        CONTRACTIONS,
        REDUCTIONS,
        SCALAR_OPS,
        SCANS,
        STORE_MODES,
        ReductionKind,
        ScalarOp,
        identity,
    )
    from polyfuse.ir.statements import (
        Cast,
        Compute,
        Constant,
        IndexValue,
        Load,
        Random,
        Reduce,
        Statement,
        Store,
    )
    from polyfuse.ir.statements import Scan as ScanStatement
    from polyfuse.ir.text.parse import parse_kernel
    from polyfuse.ir.text.print import text
    from polyfuse.ir.types import DType
    from polyfuse.plugin.host import HostProgram
    from polyfuse.plugin.host_library import HostLibrary
    from polyfuse.runtime.devices.device import Device, DeviceProperties, Event, Limits, MemoryStatistics
    from polyfuse.runtime.devices.graphs import DeviceGraph, GraphRecorder
    from polyfuse.runtime.devices.recording import StreamRecorder
    from polyfuse.runtime.devices.registry import device_of
    from polyfuse.symbolic import (
        Atom,
        Index,
        IndexLike,
        axis,
        axis_name,
        axis_size,
        coefficient,
        free_axes,
        product,
        python_text,
        substitute,
    )

__all__ = [
    "API_VERSION",
    "Alias",
    "Atom",
    "Backend",
    "BackendUnavailableError",
    "Buffer",
    "CONTRACTIONS",
    "CallSite",
    "Cast",
    "Choice",
    "Claim",
    "Codegen",
    "Compute",
    "Config",
    "Constant",
    "DType",
    "Device",
    "DeviceGraph",
    "DeviceProperties",
    "DeviceTimer",
    "ENTRY_POINT_GROUP",
    "Event",
    "Expected",
    "Expr",
    "Extensions",
    "ExternCall",
    "Finding",
    "FusionPair",
    "FusionRule",
    "FusionRules",
    "GraphRecorder",
    "HostCall",
    "HostLibrary",
    "HostProgram",
    "HostTimer",
    "Index",
    "IndexLike",
    "IndexValue",
    "Kernel",
    "KernelArg",
    "KernelBuildError",
    "KernelLaunchError",
    "KernelLoadError",
    "KernelPart",
    "Launchable",
    "Limits",
    "Load",
    "LoopNode",
    "Lowering",
    "LoweringContext",
    "Manifest",
    "MemoryStatistics",
    "No",
    "Node",
    "Offer",
    "Offered",
    "PackableKernel",
    "PluginManager",
    "PluginState",
    "Pointwise",
    "REDUCTIONS",
    "Random",
    "Reduce",
    "Reduction",
    "ReductionKind",
    "ReplacementCalls",
    "Requires",
    "Rewrite",
    "RewriteContext",
    "RowBuffer",
    "SCALAR_OPS",
    "SCANS",
    "STORE_MODES",
    "ScalarOp",
    "Scan",
    "ScanStatement",
    "Scatter",
    "Section",
    "Settings",
    "Source",
    "State",
    "Statement",
    "Store",
    "StreamRecorder",
    "TargetInfo",
    "TemplateCall",
    "TemplateSource",
    "TensorValue",
    "Timer",
    "UnsupportedError",
    "View",
    "WrittenKernel",
    "Yes",
    "all_of",
    "apply",
    "axis",
    "axis_name",
    "axis_size",
    "check_api",
    "coefficient",
    "device_of",
    "environment",
    "free_axes",
    "hookimpl",
    "identity",
    "kit",
    "loads",
    "parse_kernel",
    "product",
    "python_text",
    "register",
    "run_kernel",
    "run_program",
    "substitute",
    "text",
    "unregister",
    "walk",
]

# Imported when it is asked for: manifests are read without torch and without the representation of kernels.
_FROM = {
    "polyfuse.base.errors": "BackendUnavailableError KernelBuildError KernelLaunchError KernelLoadError"
    " UnsupportedError",
    "polyfuse.base.process": "run_program",
    "polyfuse.base.settings": "Settings environment",
    "polyfuse.ir.expr": "Expr apply loads walk",
    "polyfuse.ir.interpreter.interpret": "run_kernel",
    "polyfuse.ir.kernel": "Alias Kernel KernelArg KernelPart RowBuffer Section",
    "polyfuse.ir.nodes": "Buffer ExternCall LoopNode Node Pointwise Reduction Scan Scatter TemplateCall View",
    "polyfuse.ir.ops": "CONTRACTIONS REDUCTIONS SCALAR_OPS SCANS STORE_MODES ReductionKind ScalarOp identity",
    "polyfuse.ir.statements": "Cast Compute Constant IndexValue Load Random Reduce Statement Store",
    "polyfuse.ir.text.parse": "parse_kernel",
    "polyfuse.ir.text.print": "text",
    "polyfuse.ir.types": "DType",
    "polyfuse.plugin.host": "HostProgram",
    "polyfuse.plugin.host_library": "HostLibrary",
    "polyfuse.runtime.devices.device": "Device DeviceProperties Event Limits MemoryStatistics",
    "polyfuse.runtime.devices.graphs": "DeviceGraph GraphRecorder",
    "polyfuse.runtime.devices.recording": "StreamRecorder",
    "polyfuse.runtime.devices.registry": "device_of",
    "polyfuse.symbolic": "Atom Index IndexLike axis axis_name axis_size"
    " coefficient free_axes product python_text substitute",
}
_IMPORT_PATHS = {
    **{name: f"{module}:{name}" for module, names in _FROM.items() for name in names.split()},
    "ScanStatement": "polyfuse.ir.statements:Scan",
    "kit": "polyfuse.kit",
}


def __getattr__(name: str) -> object:
    return attribute(__name__, {**_IMPORT_PATHS, **replacements(name)}, name)
