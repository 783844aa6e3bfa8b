"""The hooks: what plugins may answer, one function each. A plugin implements the ones it wants, with any
subset of the arguments, in the module that its entry point names, or in an object that a program registers
(`polyfuse.plugin.register`).

Hooks are called a few times in a session, never for each kernel: they return objects that do that work.
They are pluggy's: `tryfirst`, `trylast`, `wrapper=True` and `optionalhook` mean what they mean there. Without
such marks, plugins that a program registered are called first, the latest before the others; then installed
ones with a code generator, in the order in which backends are asked; then the others by name. An
implementation that raises, ends the process, returns what the hook does not take, or does not return within
`hook_timeout` seconds is named in one warning and not called again in the session; the others are. Of a
wrapper that does, what it wraps is the answer. Hooks run in a thread of their own, where no user interrupts:
`KeyboardInterrupt` is an error like others. None says that a plugin has nothing to add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.plugin.backend import Backend
    from polyfuse.plugin.choices import Choice
    from polyfuse.plugin.codegen import Codegen
    from polyfuse.plugin.fusion import FusionRule
    from polyfuse.plugin.lowering import Lowering
    from polyfuse.plugin.manifest import Finding, Manifest
    from polyfuse.plugin.rewriting import Rewrite
    from polyfuse.plugin.timing import Timer
    from polyfuse.runtime.devices.device import Device

__all__ = [
    "PROJECT",
    "hookimpl",
    "polyfuse_cache_key",
    "polyfuse_choices",
    "polyfuse_codegen",
    "polyfuse_device",
    "polyfuse_doctor",
    "polyfuse_fusion_rules",
    "polyfuse_lowerings",
    "polyfuse_manifest",
    "polyfuse_rewrites",
    "polyfuse_timer",
]

PROJECT = "polyfuse"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# --- when plugins are discovered ----------------------------------------------------------------------------


@hookspec
def polyfuse_manifest() -> Manifest:  # type: ignore[empty-body]
    """Describe the plugin.

    Arguments: none.
    Called: once, when a session discovers its plugins; the module must import nothing heavy.
    Errors: the plugin is marked failed, with the error as the reason.

    Example::

        @hookimpl
        def polyfuse_manifest():
            return Manifest(name="mine", version="1.0", distribution="polyfuse-mine", api=(2, 0),
                            device_types=("cpu",), priority={"cpu": 50},
                            load="polyfuse_mine.backend:MyBackend")
    """


# --- when a session starts ----------------------------------------------------------------------------------


@hookspec
def polyfuse_cache_key(settings: Settings) -> Sequence[str]:  # type: ignore[empty-body]
    """Add facts on which compiled kernels and graphs depend beyond the backends' own descriptions.

    Arguments: `settings`, the session's options.
    Called: once, when a session starts; the answers of all plugins are part of every key.
    Errors: nothing is cached between runs in that session, because a stale hit would be worse.

    Example::

        @hookimpl
        def polyfuse_cache_key(settings):
            return [f"lowerings {TABLE_VERSION}"]
    """


# --- when a device type is first met ------------------------------------------------------------------------


@hookspec(firstresult=True)
def polyfuse_device(device_type: str) -> Device | None:
    """Answer for a type of device: streams, memory, properties and limits, precision, recording.

    Arguments: `device_type`, such as `cuda`.
    Called: once for each device type of the process, before anything is compiled or loaded for it. The first
    answer that is not None is used; without one, torch's module for the type serves, without recording.
    Errors: the plugin's answer is left out.

    Example::

        @hookimpl
        def polyfuse_device(device_type):
            if device_type == "mine":
                from polyfuse_mine.device import MyDevice
                return MyDevice("mine")
            return None
    """


@hookspec
def polyfuse_codegen(  # type: ignore[empty-body]
    device_type: str,
) -> Codegen | type[Backend] | Callable[[Settings], Backend] | str:
    """Say who generates kernels.

    Arguments: `device_type`, such as `cpu`.
    Called: once for each device type of a session. A plugin whose manifest names a code generator (`load`)
    and that does not implement this hook answers with that one. A wrapper may replace, remove or reorder code
    generators: it sees a list of `Codegen`.
    Errors: the plugin generates no kernels.

    Example::

        @hookimpl
        def polyfuse_codegen(device_type):
            if device_type == "cpu":
                return Codegen("polyfuse_mine.backend:MyBackend", priority=50)
    """


@hookspec
def polyfuse_fusion_rules(device_type: str) -> Sequence[FusionRule]:  # type: ignore[empty-body]
    """Say which fusions are good, on top of what the core finds legal.

    Arguments: `device_type`, such as `cpu`.
    Called: once for each device type of a session. Rules run in the order of the answers; the first that
    refuses a fusion gives the reason.
    Errors: the plugin's rules are left out. A rule that raises, or returns something else, is not asked
    again, with one warning.

    Example::

        @hookimpl
        def polyfuse_fusion_rules(device_type):
            from polyfuse_mine.rules import fits_registers
            return [FusionRule("fits-registers", allows=fits_registers)]
    """


@hookspec(firstresult=True)
def polyfuse_timer(  # type: ignore[empty-body]
    device_type: str, backend: str, settings: Settings
) -> Timer:
    """Say how launches are timed. The first answer counts; without one, the clock of this machine is used for
    what runs on it, with operands that are in no cache, and that of the device elsewhere.

    Arguments: `device_type`, such as `cpu`; `backend`, the name of the first one for the device: it times all
    candidates for a kernel or a call, whoever generates them; `settings`, the session's options.
    Called: once for each backend and device type of a session, in the process that times: mostly a benchmark
    worker, which finds installed plugins, and those that a program registered and another process can import.
    Errors: the next plugin is asked. A timer that raises although launches do not, or that returns no time,
    is replaced by the core's, with one warning.

    Example::

        @hookimpl(wrapper=True)
        def polyfuse_timer(device_type, backend):
            timer = yield
            return Slowest(timer)
    """


@hookspec
def polyfuse_rewrites(device_type: str) -> Sequence[Rewrite]:  # type: ignore[empty-body]
    """Offer rewrites of the captured graph, applied after the core's own.

    Arguments: `device_type`, such as `cpu`: they see the calls that make tensors there.
    Called: once for each device type of a session, of the plugin whose backend is first in order there, and
    of plugins without a code generator.
    Errors: the plugin's answer is left out. A rewrite that raises, or that returns what cannot replace the
    call, leaves the call as it is, with one warning.

    Example::

        @hookimpl
        def polyfuse_rewrites(device_type):
            from polyfuse_mine.rewrites import exact_reciprocal
            return [Rewrite("exact-reciprocal", ("aten.div.Tensor",), exact_reciprocal)]
    """


@hookspec
def polyfuse_lowerings(  # type: ignore[empty-body]
    device_type: str,
) -> Mapping[str, Lowering | Callable[..., object]]:
    """Offer ways to express operators in the representation.

    Arguments: `device_type`, such as `cpu`: they serve calls that make tensors there.
    Called: once for each device type of a session, of the same plugins. The answers come before the core's
    own table, so a plugin can bring the lowering of a custom operator or replace an existing one.
    Errors: the plugin's answer is left out. Where a lowering raises, or returns what does not fit the call,
    the next one of that operator is used, with one warning unless it was `UnsupportedError`.

    Example::

        @hookimpl
        def polyfuse_lowerings(device_type):
            from polyfuse_mine.lowerings import swiglu
            return {"mylib.swiglu.default": swiglu}
    """


@hookspec
def polyfuse_choices(device_type: str) -> Sequence[Choice]:  # type: ignore[empty-body]
    """Offer implementations of operators, to be timed against what torch calls and against generated kernels.

    Arguments: `device_type`, such as `cpu`: they are for calls that make tensors there.
    Called: once for each device type of a session that times calls (`gemm="fastest"`) or asks for
    what is known without timing (`"known"`, see `Choice.preferred`), of every plugin whose backend is usable
    there, and of plugins without a code generator.
    Errors: the plugin's answer is left out. A choice that raises over a call is not timed for it.

    Example::

        @hookimpl
        def polyfuse_choices(device_type):
            from polyfuse_mine.library import linear, takes
            return [Choice("mylib", ("aten.addmm.out",), applies=takes, instead=linear)]
    """


# --- when a user asks ---------------------------------------------------------------------------------------


@hookspec
def polyfuse_doctor(settings: Settings) -> Sequence[Finding]:  # type: ignore[empty-body]
    """Report on the toolchain that the plugin uses.

    Arguments: `settings`, the options in force.
    Called: by `polyfuse doctor`. May take seconds: it can try to compile something.
    Errors: shown as the plugin's finding.

    Example::

        @hookimpl
        def polyfuse_doctor(settings):
            return [Finding("compiler", True, "mycc 4.2 at /usr/bin/mycc")]
    """
