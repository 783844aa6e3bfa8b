"""What plugins add to the compiler besides code generators: lowerings, rewrites, choices, fusion rules, and
facts for keys.

For each device type there is one backend in charge, the first in order that is usable. Lowerings and rewrites
are those of its plugin and of plugins that bring no code generator, so that installing a backend that is not
used changes nothing; lowerings are also those of specialists, which come first. Choices, which are used only
where they are fastest, are those of all usable plugins, and fusion rules, each of which is about a backend,
are those of all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from polyfuse.plugin.session.fusion_rules import FusionRules

if TYPE_CHECKING:
    from polyfuse.plugin.choices import Choice
    from polyfuse.plugin.fusion import FusionRule
    from polyfuse.plugin.hooks.guarded import Answers
    from polyfuse.plugin.lowering import Lowering
    from polyfuse.plugin.rewriting import Rewrite
    from polyfuse.plugin.session.manager import PluginManager
    from polyfuse.runtime.devices.device import Device

T = TypeVar("T")


@dataclass(frozen=True)
class Offered(Generic[T]):
    """A lowering, rewrite, choice or rule, with the name of the plugin that provides it."""

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
        self._offered_rules: dict[str, tuple[Offered[FusionRule], ...]] = {}
        self._rules: dict[tuple[str, str], FusionRules] = {}

    def lowerings(self, device_type: str) -> Mapping[str, tuple[Offered[Lowering], ...]]:
        """Lowerings for a device type by the operator's name, in the order in which they are tried."""
        with self._lock:
            if device_type not in self._lowerings:
                specialists = self._specialists(device_type)
                asked = [*self._in_charge(device_type), *specialists]
                answers = self._ask("polyfuse_lowerings", device_type, asked)
                authors = {id(item.value): item.plugin for item in answers.items}
                table: dict[str, tuple[Offered[Lowering], ...]] = {}
                for answer in sorted(answers, key=lambda a: a.plugin not in specialists):
                    for name, row in answer.value.items():
                        table[name] = (*table.get(name, ()), Offered(authors[id(row)], row))
                self._lowerings[device_type] = table
            return self._lowerings[device_type]

    def is_elementwise(self, op: str, device_type: str) -> bool:
        """Whether a plugin says of an operator that it computes element by element."""
        return any(offer.item.elementwise for offer in self.lowerings(device_type).get(op, ()))

    def rewrites(self, device_type: str) -> tuple[Offered[Rewrite], ...]:
        """Rewrites for a device type, in the order in which they run."""
        with self._lock:
            if device_type not in self._rewrites:
                found = self._ask("polyfuse_rewrites", device_type)
                self._rewrites[device_type] = tuple(Offered(i.plugin, i.value) for i in found.items)
            return self._rewrites[device_type]

    def choices(self, device_type: str) -> tuple[Offered[Choice], ...]:
        """Implementations that plugins offer on a device type, in the order of the answers."""
        with self._lock:
            if device_type not in self._choices:
                usable = [backend.name for backend in self.plugins.each_backend(device_type)]
                found = self._ask("polyfuse_choices", device_type, usable)
                self._choices[device_type] = tuple(Offered(i.plugin, i.value) for i in found.items)
            return self._choices[device_type]

    def fusion_rules(self, backend: str, device_type: str) -> FusionRules:
        """What plugins say about fusions in kernels of a backend on a device type, without the rules that the
        option `disable_fusion_rules` names.
        """
        with self._lock:
            found = self._rules.get((backend, device_type))
            if found is None:
                settings = self.plugins.settings
                off = settings.disable_fusion_rules
                rules = [
                    (offer.plugin, offer.item)
                    for offer in self._rules_for(device_type)
                    if offer.item.name not in off and f"{offer.plugin}.{offer.item.name}" not in off
                    if backend in (offer.item.backends or self._own(offer.plugin, backend))
                ]
                found = FusionRules(rules, self.plugins.note_trouble, settings.strict)
                self._rules[backend, device_type] = found
            return found

    def _rules_for(self, device_type: str) -> tuple[Offered[FusionRule], ...]:
        if device_type not in self._offered_rules:
            found = self.plugins.ask("polyfuse_fusion_rules", device_type=device_type)
            self._offered_rules[device_type] = tuple(Offered(i.plugin, i.value) for i in found.items)
        return self._offered_rules[device_type]

    def _own(self, plugin: str, backend: str) -> tuple[str, ...]:
        """Whose kernels a rule that names no backends is about: its plugin's; every one's if it has none."""
        return (plugin,) if self.plugins.generates(plugin) else (backend,)

    def device(self, device_type: str) -> Device | None:
        """The first answer to `polyfuse_device`; None: no plugin knows the type. Of all plugins, be their
        backends used or not: a device is what it is.
        """
        answer = next(iter(self.plugins.ask("polyfuse_device", device_type=device_type)), None)
        if answer is None:
            return None
        from polyfuse.plugin.session.guarded_device import guard_device  # which imports torch

        strict = self.plugins.settings.strict
        return guard_device(answer.value, answer.plugin, device_type, self.plugins.note_trouble, strict)

    def key_facts(self) -> tuple[str, ...] | None:
        """What plugins add to the keys of what is stored. None: one of them failed to say, so nothing that
        was stored may be used.
        """
        found = self.plugins.hooks.ask("polyfuse_cache_key", settings=self.plugins.settings)
        if found.faults:
            return None
        return tuple(sorted(f"{answer.plugin}: {fact}" for answer in found for fact in answer.value))

    def _ask(self, hook: str, device_type: str, asked: Iterable[str] | None = None) -> Answers:
        """The answers of plugins that contribute on a device type, or of backends and of plugins without."""
        names = self._in_charge(device_type) if asked is None else tuple(asked)
        others = [
            state.name
            for state in self.plugins.states()
            if state.name not in names and self.plugins.generates(state.name)
        ]
        return self.plugins.ask(hook, others, device_type=device_type)

    def _in_charge(self, device_type: str) -> tuple[str, ...]:
        first = next(self.plugins.each_backend(device_type), None)
        return () if first is None else (first.name,)

    def _specialists(self, device_type: str) -> tuple[str, ...]:
        """Specialists for a device type that the user leaves in; none is loaded for that."""
        named = self.plugins.settings.backends
        return tuple(
            state.name
            for state in self.plugins.states()
            if state.usable and state.manifest is not None and state.manifest.specialist
            if state.manifest.serves(device_type) and (not named or state.name in named)
        )
