"""What plugins add to the compiler besides code generators: lowerings, rewrites, choices, and facts for keys.

For each device type there is one backend in charge, the first in order that is usable. Its plugin's additions
apply on that device type, and after them those of plugins that bring no code generator, by name. So
installing a backend that is not used changes nothing. Choices, which are used only where
they are fastest, are those of all usable plugins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from polyfuse.plugin.choices import Choice
from polyfuse.plugin.lowering import Lowering
from polyfuse.plugin.manager import PluginManager, State
from polyfuse.plugin.rewriting import STAGES, Rewrite

if TYPE_CHECKING:
    from polyfuse.runtime.devices.device import Device

__all__ = ["Extensions", "Offered"]

T = TypeVar("T")
A = TypeVar("A")


@dataclass(frozen=True)
class Offered(Generic[T]):
    """Something that a plugin brought."""

    plugin: str
    item: T


class Extensions:
    """The additions of one session's plugins, each asked for once. A faulty answer is left out, with one
    warning that names the plugin.
    """

    def __init__(self, plugins: PluginManager) -> None:
        self.plugins = plugins
        self._lock = threading.RLock()
        self._lowerings: dict[str, Mapping[str, tuple[Offered[Lowering], ...]]] = {}
        self._rewrites: dict[str, tuple[Offered[Rewrite], ...]] = {}
        self._choices: dict[str, tuple[Offered[Choice], ...]] = {}

    def lowerings(self, device_type: str) -> Mapping[str, tuple[Offered[Lowering], ...]]:
        """Lowerings for a device type by the operator's name, in the order in which they are tried."""
        with self._lock:
            if device_type not in self._lowerings:
                table: dict[str, tuple[Offered[Lowering], ...]] = {}
                for plugin, rows in self._answers("polyfuse_lowerings", device_type, _lowerings):
                    for name, row in rows.items():
                        table[name] = (*table.get(name, ()), Offered(plugin, row))
                self._lowerings[device_type] = table
            return self._lowerings[device_type]

    def rewrites(self, device_type: str) -> tuple[Offered[Rewrite], ...]:
        """Rewrites for a device type, in the order in which they run."""
        with self._lock:
            if device_type not in self._rewrites:
                self._rewrites[device_type] = tuple(
                    Offered(plugin, rewrite)
                    for plugin, rewrites in self._answers("polyfuse_rewrites", device_type, _rewrites)
                    for rewrite in rewrites
                )
            return self._rewrites[device_type]

    def choices(self, device_type: str) -> tuple[Offered[Choice], ...]:
        """Implementations that plugins offer on a device type, in the order of their backends."""
        with self._lock:
            if device_type not in self._choices:
                backends = (backend.name for backend in self.plugins.each_backend(device_type))
                plugins = dict.fromkeys((*backends, *self.contributors(device_type)))
                self._choices[device_type] = tuple(
                    Offered(plugin, choice)
                    for plugin, found in self._answers("polyfuse_choices", device_type, _choices, plugins)
                    for choice in found
                )
            return self._choices[device_type]

    def device(self, device_type: str) -> Device | None:
        """The first answer to `polyfuse_device`; None: no plugin knows the type. Of all plugins, be their
        backends used or not: a device is what it is.
        """
        for plugin, function in self.plugins.implementations("polyfuse_device"):
            try:
                answer = function(device_type=device_type)
                if answer is not None:
                    return _device(answer)
            except Exception as error:
                if self.plugins.settings.strict:
                    raise
                self.plugins.note_trouble(plugin, error, "answering polyfuse_device")
        return None

    def key_facts(self) -> tuple[str, ...] | None:
        """What plugins add to the keys of what is stored. None: one of them failed to say, so nothing that
        was stored may be used.
        """
        found: list[str] = []
        for plugin, function in self.plugins.implementations("polyfuse_cache_key"):
            try:
                answer = function(settings=self.plugins.settings)
                found += [f"{plugin}: {fact}" for fact in _texts(answer)]
            except Exception as error:
                doing = "answering polyfuse_cache_key, so that nothing is kept between runs"
                self.plugins.note_trouble(plugin, error, doing)
                return None
        return tuple(found)

    def contributors(self, device_type: str) -> tuple[str, ...]:
        """The plugins whose additions apply on a device type, in order."""
        first = next(self.plugins.each_backend(device_type), None)
        others = (
            state.name
            for state in self.plugins.states()
            if state.state is State.AVAILABLE and state.manifest is not None and not state.manifest.load
        )
        return (*([first.name] if first is not None else []), *others)

    def _answers(
        self,
        hook: str,
        device_type: str,
        check: Callable[[Any], A],
        plugins: Iterable[str] | None = None,
    ) -> list[tuple[str, A]]:
        implementations = dict(self.plugins.implementations(hook))
        answers: list[tuple[str, A]] = []
        asked = self.contributors(device_type) if implementations and plugins is None else plugins or ()
        for plugin in asked:
            if plugin in implementations:
                try:
                    answers.append((plugin, check(implementations[plugin](device_type=device_type))))
                except Exception as error:
                    if self.plugins.settings.strict:
                        raise
                    self.plugins.note_trouble(plugin, error, f"answering {hook}")
        return answers


def _lowerings(answer: Any) -> dict[str, Lowering]:
    if answer is None:
        return {}
    if not isinstance(answer, Mapping):
        raise TypeError(f"a {type(answer).__name__} is no mapping of operators to lowerings")
    table: dict[str, Lowering] = {}
    for name, row in answer.items():
        lowering = row if isinstance(row, Lowering) else Lowering(row)
        if not isinstance(name, str) or not callable(lowering.function):
            raise TypeError(f"{name!r} is not the name of an operator with a function")
        table[name] = lowering
    return table


def _device(answer: Any) -> Device:
    from polyfuse.runtime.devices.device import Device

    if not isinstance(answer, Device):
        raise TypeError(f"a {type(answer).__name__} is no Device")
    return answer


def _rewrites(answer: Any) -> tuple[Rewrite, ...]:
    found = tuple(answer) if isinstance(answer, Sequence) else () if answer is None else (answer,)
    for rewrite in found:
        if not isinstance(rewrite, Rewrite):
            raise TypeError(f"a {type(rewrite).__name__} is no Rewrite")
        unknown = [stage for stage in rewrite.stages if stage not in STAGES]
        if unknown:
            raise ValueError(f"rewrite {rewrite.name} names the stage {unknown[0]!r}, which does not exist")
    return found


def _choices(answer: Any) -> tuple[Choice, ...]:
    found = tuple(answer) if isinstance(answer, Sequence) else () if answer is None else (answer,)
    for choice in found:
        if not isinstance(choice, Choice):
            raise TypeError(f"a {type(choice).__name__} is no Choice")
    return found


def _texts(answer: Any) -> Sequence[str]:
    found = () if answer is None else answer
    if isinstance(found, str) or not all(isinstance(fact, str) for fact in found):
        raise TypeError("the answer must be a sequence of texts")
    return tuple(found)
