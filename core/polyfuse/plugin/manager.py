"""The plugins of one session: found, ordered, loaded when first needed, and isolated from each other."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module, metadata

import pluggy

from polyfuse.base.errors import (
    BackendUnavailableError,
    IncompatibleBackendError,
    InvalidOptionError,
    PolyfuseError,
)
from polyfuse.base.log import get_logger, warn_once
from polyfuse.base.settings import Settings
from polyfuse.base.text import join_words, nearest, shorten
from polyfuse.plugin import hookspecs
from polyfuse.plugin.api import check_api
from polyfuse.plugin.backend import Backend
from polyfuse.plugin.discovery import Candidate, find_candidates, missing_requirement, read_manifest
from polyfuse.plugin.manifest import Manifest

__all__ = ["PluginManager", "PluginState", "State"]

_log = get_logger("plugin")


class State(StrEnum):
    """Where a plugin stands."""

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


class PluginManager:
    """The plugins of one session.

    Made once from `Settings`; what it resolved stays as it is, so inner loops can hold on to the answers.
    Nothing a plugin does while it is read or loaded can raise out of here, except where the user named it and
    there is no fallback (`strict`), or two distributions claim one name.
    """

    def __init__(self, settings: Settings, entry_points: Iterable[metadata.EntryPoint] | None = None) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._states: dict[str, PluginState] = {}
        self._backends: dict[str, Backend] = {}
        self._orders: dict[str, tuple[Backend, ...]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._warned: set[str] = set()
        self._hooks = pluggy.PluginManager(hookspecs.PROJECT)
        self._hooks.add_hookspecs(hookspecs)
        for candidate in find_candidates(entry_points):
            self._states[candidate.name] = self._admit(candidate)
        self._check_names()

    # Looking.

    def states(self) -> tuple[PluginState, ...]:
        """Return the state of every plugin, by name."""
        with self._lock:
            return tuple(self._states[name] for name in sorted(self._states))

    def state(self, name: str) -> PluginState:
        """Return the state of one plugin; raises `BackendUnavailableError` if there is none of that name."""
        with self._lock:
            if name not in self._states:
                raise self._unknown(name)
            return self._states[name]

    def module(self, name: str) -> str:
        """Return the name of the module that declares a plugin; empty if it could not be read."""
        return str(getattr(self._hooks.get_plugin(name), "__name__", ""))

    def order(self, device_type: str) -> tuple[str, ...]:
        """Return the names of usable backends for a device type in the order in which they are asked."""
        with self._lock:
            usable = {
                item.name: item.manifest
                for item in self.states()
                if item.manifest is not None
                and item.manifest.load
                and item.state in (State.AVAILABLE, State.LOADED)
            }
        if self.settings.backends:
            return tuple(
                name
                for name in dict.fromkeys(self.settings.backends)
                if name in usable and usable[name].serves(device_type)
            )
        ranked = [(m.rank(device_type), name) for name, m in usable.items()]
        return tuple(name for _, name in sorted((-rank, name) for rank, name in ranked if rank is not None))

    # Loading.

    def backends(self, device_type: str) -> tuple[Backend, ...]:
        """Return the loaded backends for a device type, in order. Resolved once; those that fail are left
        out.

        Empty means that everything on this device runs in eager mode.
        """
        with self._lock:
            if device_type not in self._orders:
                self._orders[device_type] = tuple(self.each_backend(device_type))
            return self._orders[device_type]

    def each_backend(self, device_type: str) -> Iterator[Backend]:
        """Yield the backends for a device type in order, each loaded only when it is reached: mostly the
        first one answers, and the others cost nothing.
        """
        with self._lock:
            if device_type not in self._names:
                self._names[device_type] = self.order(device_type)
        first: Backend | None = None
        for name in self._names[device_type]:
            with self._lock:
                backend = self._load(name)
            if backend is None:
                continue
            if first is None:
                first = backend
                self._warn_of_refused(device_type, first)
            yield backend
        if first is None:
            self._warn_of_refused(device_type, None)

    def backend(self, name: str) -> Backend:
        """Return one backend by name, loading it if needed, or raise `BackendUnavailableError` with the
        reason.
        """
        with self._lock:
            self.state(name)
            backend = self._load(name)
            if backend is None:
                state = self.state(name)
                if state.manifest is not None and not state.manifest.load:
                    raise BackendUnavailableError(f"plugin {name!r} brings no code generator")
                raise BackendUnavailableError(f"backend {name!r} is {state.state.value}: {state.reason}")
            return backend

    def note_trouble(self, name: str, error: BaseException, doing: str) -> None:
        """Record, and warn once, that a backend raised over one kernel. It stays in use for others."""
        with self._lock:
            self._report(name, error, doing)
            state = self._states[name]
            self._states[name] = _changed(state, state.state, f"{doing} raised {_brief(error)}")

    # Hooks.

    def implementations(self, hook: str) -> tuple[tuple[str, Callable[..., object]], ...]:
        """Return (plugin name, function) for each implementation of a hook, to be called with keywords.

        Built-in or not, plugins answer in the order of their names.
        """
        answers: list[tuple[str, Callable[..., object]]] = []
        for impl in getattr(self._hooks.hook, hook).get_hookimpls():
            answers.append((impl.plugin_name, _with_subset(impl.function, tuple(impl.argnames))))
        return tuple(sorted(answers, key=lambda pair: pair[0]))

    def gather(self, hook: str, **arguments: object) -> tuple[tuple[str, object], ...]:
        """Call a hook of every plugin in isolation, and return (plugin name, answer) where there is one."""
        answers: list[tuple[str, object]] = []
        for name, function in self.implementations(hook):
            try:
                answer = function(**arguments)
            except Exception as error:
                self._report(name, error, f"answering {hook}")
                continue
            if answer is not None:
                answers.append((name, answer))
        return tuple(answers)

    # How it is done.

    def _admit(self, candidate: Candidate) -> PluginState:
        state = PluginState(candidate.name, candidate.distribution, candidate.version, State.AVAILABLE)
        if candidate.name in self.settings.disable:
            return _changed(state, State.DISABLED, "listed in the option `disable`")
        try:
            module = candidate.entry_point.load()
            manifest = read_manifest(module, candidate.name)
        except Exception as error:
            return self._fail(state, error, "reading its manifest")
        state = PluginState(
            candidate.name, candidate.distribution, manifest.version, State.AVAILABLE, "", manifest
        )
        try:
            check_api(candidate.name, manifest.api)
        except IncompatibleBackendError as error:
            warn_once("plugin", str(error), key=f"refused {candidate.name}")
            return _changed(state, State.REFUSED, str(error))
        missing = missing_requirement(manifest.requires)
        if missing:
            return _changed(state, State.REFUSED, missing)
        try:
            self._hooks.register(module, candidate.name)
            self._hooks.check_pending()
        except Exception as error:
            if self._hooks.get_plugin(candidate.name) is not None:
                self._hooks.unregister(name=candidate.name)
            return self._fail(state, error, "registering its hooks")
        return state

    def _load(self, name: str) -> Backend | None:
        if name in self._backends:
            return self._backends[name]
        state = self._states[name]
        if state.state is not State.AVAILABLE or state.manifest is None or not state.manifest.load:
            return None
        try:
            backend = _make(state.manifest, self.settings)
        except BackendUnavailableError as error:
            # Not a fault: the plugin looked at this machine and declined.
            self._states[name] = _changed(state, State.REFUSED, str(error))
            return None
        except Exception as error:
            if self.settings.strict:
                raise
            self._states[name] = self._fail(state, error, "loading")
            return None
        self._states[name] = _changed(state, State.LOADED)
        self._backends[name] = backend
        return backend

    def _warn_of_refused(self, device_type: str, chosen: Backend | None) -> None:
        """Say, once, which backend would have come first, if it only were usable here."""
        if device_type in self._warned and chosen is not None:
            return
        asked = list(self.settings.backends)
        first = self._states[chosen.name].manifest if chosen is not None else None
        least = first.rank(device_type) if first is not None else None
        refused = 0
        for state in self.states():
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
            if self.settings.strict and passed and serves:
                taker = repr(chosen.name) if chosen is not None else "eager mode"
                raise BackendUnavailableError(
                    f"backend {state.name!r} cannot be used ({state.reason}), and `strict` does not let "
                    f"{taker} replace it",
                    f"correct that, set POLYFUSE_DISABLE={state.name}, or unset strict",
                )
            taker = repr(chosen.name) if chosen is not None else "eager mode"
            warn_once(
                "plugin",
                f"backend {state.name!r} cannot be used: {state.reason}; until then {taker} replaces it",
                key=f"refused {state.name}",
            )
        if not refused and chosen is not None and chosen.last_resort and chosen.name not in asked:
            self._note_interpreted(device_type, chosen)
        self._warned.add(device_type)

    def _note_interpreted(self, device_type: str, chosen: Backend) -> None:
        """Say that nobody compiles for a type of device."""
        disabled = [f"{s.name!r} is disabled" for s in self.states() if s.state is State.DISABLED]
        why = join_words(disabled) or "none is installed"
        cause = f"no backend compiles kernels for device type {device_type!r} ({why})"
        if self.settings.strict:
            raise BackendUnavailableError(
                f"{cause}, and `strict` does not let {chosen.name!r} interpret them",
                f"install one, or name {chosen.name!r} in `backends`",
            )
        warn_once(
            "plugin",
            f"{cause}; {chosen.name!r} interprets them, which is slow",
            key=f"interpreted {device_type}",
        )

    def _fail(self, state: PluginState, error: BaseException, doing: str) -> PluginState:
        self._report(state.name, error, doing)
        failed = _changed(state, State.FAILED, f"{doing} raised {_brief(error)}")
        self._states[state.name] = failed
        return failed

    def _report(self, name: str, error: BaseException, doing: str) -> None:
        known = self._states.get(name)
        whence = f" ({known.distribution} {known.version})" if known else ""
        warn_once(
            "plugin",
            f"plugin {name!r}{whence} failed while {doing}: {_brief(error)}; "
            f"other lowerings are used, and `polyfuse backends` shows its state",
            key=f"{name} {doing}",
        )
        _log.debug("%s", "".join(traceback.format_exception(error)))

    def _check_names(self) -> None:
        for name in self.settings.backends:
            if name not in self._states:
                raise self._unknown(name)
        for name in self.settings.disable:
            if name not in self._states:
                close = nearest(name, self._states) or tuple(sorted(self._states))
                warn_once(
                    "plugin",
                    f"the option `disable` (POLYFUSE_DISABLE) names {name!r}, which is not installed; did "
                    f"you mean {join_words(close, 'or')}?",
                )
        self._check_plugin_options()

    def _check_plugin_options(self) -> None:
        for full, _ in self.settings.plugin_options:
            plugin, _, option = full.partition(".")
            state = self._states.get(plugin)
            if state is None:
                raise InvalidOptionError(
                    f"option {full!r} is for a plugin that is not installed", "correct its name"
                )
            declared = state.manifest.options if state.manifest is not None else None
            if declared is not None and option not in declared:
                close = nearest(option, declared) or tuple(sorted(declared))
                fix = f"did you mean {join_words([f'{plugin}.{name}' for name in close], 'or')}?"
                raise InvalidOptionError(
                    f"option {full!r} is unknown", fix if close else f"plugin {plugin!r} has no options"
                )

    def _unknown(self, name: str) -> BackendUnavailableError:
        close = nearest(name, self._states)
        if close:
            fix = f"did you mean {join_words(close, 'or')}?"
        else:
            fix = f"installed are {join_words(sorted(self._states)) or 'none'}"
        return BackendUnavailableError(f"backend {name!r} is not installed", fix)


def _make(manifest: Manifest, settings: Settings) -> Backend:
    module_name, _, attribute = manifest.load.partition(":")
    factory = getattr(import_module(module_name), attribute)
    backend = factory(settings)
    if not isinstance(backend, Backend):
        raise PolyfuseError(f"{manifest.load} made a {type(backend).__name__}", "it must return a Backend")
    backend.name = manifest.name
    backend.last_resort = manifest.last_resort
    return backend


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {shorten(str(error), 200)}"


def _changed(state: PluginState, new: State, reason: str = "") -> PluginState:
    return PluginState(state.name, state.distribution, state.version, new, reason, state.manifest)


def _with_subset(function: Callable[..., object], names: tuple[str, ...]) -> Callable[..., object]:
    def call(**arguments: object) -> object:
        return function(**{name: arguments[name] for name in names})

    return call
