"""The plugins of one session: found, ordered, loaded when first needed, and isolated from each other."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module, metadata
from typing import TYPE_CHECKING

from polyfuse.base.errors import (
    BackendUnavailableError,
    IncompatibleBackendError,
    PolyfuseError,
)
from polyfuse.base.log import get_logger, warn_once
from polyfuse.base.text import brief
from polyfuse.plugin.api import check_api
from polyfuse.plugin.backend import Backend
from polyfuse.plugin.codegen import Codegen
from polyfuse.plugin.deprecation import deprecated_hooks, warn_of_deprecated, warn_of_methods
from polyfuse.plugin.hooks import specs
from polyfuse.plugin.hooks.faults import as_error, is_fault
from polyfuse.plugin.hooks.guarded import Answers, GuardedHooks
from polyfuse.plugin.hooks.registry import registered
from polyfuse.plugin.hooks.specs import hookimpl
from polyfuse.plugin.session.discovery import (
    Candidate,
    ImportPath,
    find_candidates,
    import_path,
    manifest_of,
    missing_requirement,
    registered_candidates,
)
from polyfuse.plugin.session.guarded_backend import guard
from polyfuse.plugin.session.guarded_timer import GuardedTimer
from polyfuse.plugin.session.names import check_names, no_generator, unknown_backend
from polyfuse.plugin.session.states import PluginState, State, warn_of_interpreted, warn_of_refused
from polyfuse.plugin.timing import Timer, default_timer

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.plugin.manifest import Manifest

_log = get_logger("plugin")

_CORE = "polyfuse"
"""The name under which the core answers hooks that must have an answer."""


class PluginManager:
    """The plugins of one session.

    Made once from `Settings`; what it resolved stays as it is, so inner loops can hold on to the answers.
    Nothing a plugin does while it is read or loaded can raise out of here, except where the user named it and
    there is no fallback (`strict`), or two distributions claim one name.

    Attributes:
        hooks: calls hooks.
    """

    def __init__(self, settings: Settings, entry_points: Iterable[metadata.EntryPoint] | None = None) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._states: dict[str, PluginState] = {}
        self._backends: dict[tuple[str, object], Backend] = {}
        self._orders: dict[str, tuple[Codegen, ...]] = {}
        self._timers: dict[tuple[str, str], Timer] = {}
        self._warned: set[str] = set()
        self.hooks = GuardedHooks(self._report_hook, settings.hook_timeout)
        self.hooks.add_hookspecs(specs)
        self.hooks.register(_DefaultTimers(), _CORE)
        own = registered_candidates(registered())
        installed = [c for c in find_candidates(entry_points) if c.name not in {o.name for o in own}]
        for candidate, plugin in sorted(self._read(installed), key=lambda pair: self._rank(pair[0].name)):
            self._register(candidate.name, plugin)
        for candidate, plugin in self._read(own):
            self._register(candidate.name, plugin)
        self._take_manifests()
        check_names(settings, self._states, self.generates)

    # Looking.

    def states(self) -> tuple[PluginState, ...]:
        """Return the state of every plugin, by name."""
        with self._lock:
            return tuple(self._states[name] for name in sorted(self._states))

    def state(self, name: str) -> PluginState:
        """Return the state of one plugin; raises `BackendUnavailableError` if there is none of that name."""
        with self._lock:
            if name not in self._states:
                raise unknown_backend(name, self._states)
            return self._states[name]

    def require(self, name: str) -> None:
        """Raise `BackendUnavailableError` if a backend that a user named is not installed, is no backend, or
        cannot be used as far as is known; it is not loaded.
        """
        state = self.state(name)
        if not state.usable:
            raise BackendUnavailableError(f"backend {name!r} is {state.state.value}: {state.reason}")
        if not self.generates(name):
            raise no_generator(name)

    def module(self, name: str) -> str:
        """Return the name of the module that declares a plugin; empty if it could not be read."""
        plugin = self.hooks.get_plugin(name)
        if plugin is None:
            return ""
        return str(getattr(plugin, "__name__", "") or getattr(type(plugin), "__module__", ""))

    def generates(self, name: str) -> bool:
        """Return whether a plugin brings a code generator, for whatever type of device."""
        return any(self.hooks.implements(n, "polyfuse_codegen") for n in (name, f"{name}.load"))

    def order(self, device_type: str) -> tuple[str, ...]:
        """Return the names of usable backends for a device type in the order in which they are asked."""
        return tuple(found.plugin for found in self._order(device_type))

    # Loading.

    def backends(self, device_type: str) -> tuple[Backend, ...]:
        """Return the loaded backends for a device type, in order. Those that fail are left out.

        Empty means that everything on this device runs in eager mode.
        """
        return tuple(self.each_backend(device_type))

    def each_backend(self, device_type: str) -> Iterator[Backend]:
        """Yield the backends for a device type in order, each loaded only when it is reached: mostly the
        first one answers, and the others cost nothing.
        """
        first: Backend | None = None
        for codegen in self._order(device_type):
            with self._lock:
                backend = self._load(codegen)
            if backend is None:
                continue
            if first is None:
                first = backend
                self._warn(device_type, first)
            yield backend
        if first is None:
            self._warn(device_type, None)

    def backend(self, name: str) -> Backend:
        """Return one backend by name, loading it if needed, or raise `BackendUnavailableError` with the
        reason.
        """
        with self._lock:
            self.require(name)
            state = self.state(name)
            loaded = next((b for (plugin, _), b in self._backends.items() if plugin == name), None)
            if loaded is not None:
                return loaded
            served = state.manifest.device_types if state.manifest is not None else ()
            for device_type in [d for d in served if d != "*"] or ["cpu"]:
                answers = self.hooks.ask("polyfuse_codegen", device_type=device_type)
                for answer in answers:
                    codegen: Codegen = answer.value
                    backend = self._load(codegen) if codegen.plugin == name else None
                    if backend is not None:
                        return backend
            self.require(name)
            raise BackendUnavailableError(f"backend {name!r} serves no type of device here")

    def timer(self, backend: str, device_type: str) -> Timer:
        """Return what times launches where a backend is the first one for a type of device."""
        with self._lock:
            found = self._timers.get((backend, device_type))
            if found is None:
                answers = self.ask(
                    "polyfuse_timer", device_type=device_type, backend=backend, settings=self.settings
                )
                answer = next(iter(answers), None)
                found = default_timer(device_type) if answer is None else answer.value
                if answer is not None and answer.plugin != _CORE:
                    report = partial(self._report_timer, answer.plugin)
                    otherwise = partial(default_timer, device_type)
                    found = GuardedTimer(found, otherwise, report, self.settings.strict)
                self._timers[backend, device_type] = found
            return found

    def _report_timer(self, plugin: str, error: BaseException) -> None:
        self.note_trouble(plugin, error, "timing by its `polyfuse_timer`")

    def note_trouble(self, name: str, error: BaseException, doing: str) -> None:
        """Record, and warn once, that a backend raised over one kernel. It stays in use for others."""
        with self._lock:
            self._report(name, error, doing)
            state = self._states[name]
            self._states[name] = state.changed(state.state, f"{doing} raised {brief(error)}")

    # Hooks.

    def ask(self, hook: str, without: Iterable[str] = (), **arguments: object) -> Answers:
        """Call a hook, and return its answers in pluggy's order.

        Args:
            without: names of plugins that are not asked.

        Raises:
            Exception: what an implementation raised, with `strict`.
        """
        answers = self.hooks.ask(hook, without, **arguments)
        if self.settings.strict and answers.faults:
            plugin, error = answers.faults[0]
            raise as_error(error, plugin, f"answering {hook}")
        return answers

    # How it is done.

    def _read(self, candidates: Sequence[Candidate]) -> list[tuple[Candidate, object]]:
        """Look at plugins, note their states, and return those that can be registered."""
        wanted: list[Candidate] = []
        for candidate in candidates:
            state = PluginState(candidate.name, candidate.distribution, candidate.version, State.AVAILABLE)
            self._states[candidate.name] = state
            if candidate.name in self.settings.disable:
                self._states[candidate.name] = state.changed(State.DISABLED, "listed in the option `disable`")
            else:
                wanted.append(candidate)
        found = self.hooks.bounded_each([partial(manifest_of, c) for c in wanted], "polyfuse-manifests")
        admitted: list[tuple[Candidate, object]] = []
        path = import_path()
        for candidate, outcome in zip(wanted, found, strict=True):
            if isinstance(outcome, BaseException):
                self._fail(self._states[candidate.name], outcome, "reading its manifest")
            elif self._admits(candidate, outcome[1], path):
                admitted.append((candidate, outcome[0]))
        return admitted

    def _admits(self, candidate: Candidate, manifest: Manifest, path: ImportPath) -> bool:
        version = manifest.version or candidate.version
        state = PluginState(candidate.name, candidate.distribution, version, State.AVAILABLE, "", manifest)
        self._states[candidate.name] = state
        try:
            check_api(candidate.name, manifest.api)
        except IncompatibleBackendError as error:
            warn_once("plugin", str(error), key=f"refused {candidate.name}")
            self._states[candidate.name] = state.changed(State.REFUSED, str(error))
            return False
        missing = missing_requirement(manifest.requires, path)
        if missing:
            self._states[candidate.name] = state.changed(State.REFUSED, missing)
        return not missing

    def _rank(self, name: str) -> tuple[int, int, tuple[int, ...]]:
        """Where a plugin is registered: pluggy calls the last one first."""
        manifest = self._states[name].manifest
        generates = bool(manifest is not None and manifest.load)
        asked = self.settings.backends
        preference = -asked.index(name) if name in asked else -len(asked)
        priority = max(manifest.priority.values(), default=-1) if generates and manifest is not None else -1
        by_name = tuple(-ord(letter) for letter in name)
        return (preference + len(asked), priority, by_name)

    def _register(self, name: str, plugin: object) -> None:
        state = self._states[name]
        try:
            if self.hooks.register(plugin, name) is None:
                return
            self.hooks.check_pending()
            for hook in deprecated_hooks():
                if self.hooks.implements(name, hook):
                    warn_of_deprecated(hook, f"plugin {name!r}")
            declares = state.manifest is not None and bool(state.manifest.load)
            if (
                declares
                and state.manifest is not None
                and not self.hooks.implements(name, "polyfuse_codegen")
            ):
                self.hooks.register(_ManifestCodegen(state.manifest), f"{name}.load")
        except BaseException as error:
            if not is_fault(error):
                raise
            if self.hooks.get_plugin(name) is not None:
                self.hooks.unregister(name=name)
            self._fail(state, error, "registering its hooks")

    def _take_manifests(self) -> None:
        """Manifests as wrappers leave them."""
        for answer in self.hooks.ask("polyfuse_manifest"):
            manifest: Manifest = answer.value
            state = self._states.get(manifest.name)
            if state is not None and state.usable:
                self._states[manifest.name] = PluginState(
                    state.name, state.distribution, manifest.version, state.state, state.reason, manifest
                )

    def _order(self, device_type: str) -> tuple[Codegen, ...]:
        with self._lock:
            if device_type not in self._orders:
                answers = self.ask("polyfuse_codegen", device_type=device_type)
                found: dict[str, Codegen] = {}
                for answer in answers:
                    found.setdefault(answer.value.plugin, answer.value)
                if self.settings.backends:
                    named = dict.fromkeys(self.settings.backends)
                    order = [found[name] for name in named if name in found]
                else:
                    ranked = [c for c in found.values() if c.priority is not None]
                    order = sorted(ranked, key=lambda c: (-(c.priority or 0), c.plugin))
                self._orders[device_type] = tuple(order)
            return tuple(c for c in self._orders[device_type] if self._states[c.plugin].usable)

    def _load(self, codegen: Codegen) -> Backend | None:
        name = codegen.plugin
        slot = (name, codegen.load)
        if slot in self._backends:
            return self._backends[slot]
        state = self._states[name]
        if not state.usable:
            return None
        try:
            made = _make(codegen, self.settings)
            warn_of_methods(type(made), Backend, f"plugin {name!r}")
            backend = guard(made, self.note_trouble)
        except BackendUnavailableError as error:
            # Not a fault: the plugin looked at this machine and declined.
            self._states[name] = state.changed(State.REFUSED, str(error))
            return None
        except BaseException as error:
            if not is_fault(error):
                raise
            if self.settings.strict:
                raise as_error(error, name, "loading") from None
            self._fail(state, error, "loading")
            return None
        self._states[name] = state.changed(State.LOADED)
        self._backends[slot] = backend
        return backend

    def _warn(self, device_type: str, chosen: Backend | None) -> None:
        """Say, once, which backend would have come first, if it only were usable here."""
        if device_type in self._warned and chosen is not None:
            return
        refused = warn_of_refused(self.states(), self.settings, device_type, chosen)
        asked = self.settings.backends
        if not refused and chosen is not None and chosen.last_resort and chosen.name not in asked:
            warn_of_interpreted(self.states(), self.settings, device_type, chosen)
        self._warned.add(device_type)

    def _fail(self, state: PluginState, error: BaseException, doing: str) -> None:
        self._report(state.name, error, doing)
        self._states[state.name] = state.changed(State.FAILED, f"{doing} raised {brief(error)}")

    def _report_hook(self, plugin: str, hook: str, error: BaseException) -> None:
        """What the hooks call when an implementation is left out."""
        doing = f"answering {hook}"
        if hook == "polyfuse_cache_key":
            doing += ", so that nothing is cached between runs"
        if plugin in self._states:
            self.note_trouble(plugin, error, doing)
        else:
            self._report(plugin, error, doing)

    def _report(self, name: str, error: BaseException, doing: str) -> None:
        known = self._states.get(name)
        whence = f" ({known.distribution} {known.version})" if known else ""
        warn_once(
            "plugin",
            f"plugin {name!r}{whence} failed while {doing}: {brief(error)}; "
            f"what other plugins and the core offer is used, and `polyfuse backends` shows its state",
            key=f"{name} {doing}",
        )
        _log.debug("%s", "".join(traceback.format_exception(error)))


class _DefaultTimers:
    """The core's own answer, after those of plugins, so that a wrapper always has a timer to wrap."""

    @hookimpl(trylast=True)
    def polyfuse_timer(self, device_type: str) -> Timer:
        """Answer for every type of device."""
        return default_timer(device_type)


class _ManifestCodegen:
    """The code generator that a manifest names, as an answer to the hook. pluggy finds a function that is an
    attribute of the object itself sooner than a method.
    """

    def __init__(self, manifest: Manifest) -> None:
        @hookimpl
        def polyfuse_codegen(device_type: str) -> Codegen | None:
            if not manifest.serves(device_type):
                return None
            return Codegen(manifest.load, manifest.rank(device_type), manifest.last_resort, manifest.name)

        self.polyfuse_codegen = polyfuse_codegen


def _make(codegen: Codegen, settings: Settings) -> Backend:
    factory = codegen.load
    if isinstance(factory, str):
        module_name, _, attribute = factory.partition(":")
        factory = getattr(import_module(module_name), attribute)
    assert not isinstance(factory, str)
    backend = factory(settings)
    if not isinstance(backend, Backend):
        raise PolyfuseError(f"{codegen.load} made a {type(backend).__name__}", "it must return a Backend")
    backend.name = codegen.plugin
    backend.last_resort = codegen.last_resort
    return backend
