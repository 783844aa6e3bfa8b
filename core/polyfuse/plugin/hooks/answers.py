"""What an answer to each hook must be. A check returns the answer, in the form in which it is used, or raises
what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from polyfuse.plugin.backend import Backend
from polyfuse.plugin.choices import Choice
from polyfuse.plugin.codegen import Codegen
from polyfuse.plugin.fusion import FusionRule
from polyfuse.plugin.lowering import Lowering
from polyfuse.plugin.manifest import Finding, Manifest
from polyfuse.plugin.rewriting import STAGES, Rewrite
from polyfuse.plugin.timing import Timer


def checked(hook: str, answer: Any, plugin: str) -> Any:
    """Return what a plugin answered to a hook in the form in which it is used, or raise `TypeError` or
    `ValueError`.
    """
    check = _CHECKS.get(hook)
    found = answer if check is None else check(answer)
    return replace(found, plugin=plugin) if isinstance(found, Codegen) and not found.plugin else found


def parts(answer: object) -> tuple[object, ...]:
    """Return the things of which an answer consists."""
    if isinstance(answer, Mapping):
        return tuple(answer.values())
    return answer if isinstance(answer, tuple) else ()


def _several(kind: type, answer: Any) -> tuple[Any, ...]:
    """A sequence of one kind of thing, or one such thing."""
    found = tuple(answer) if isinstance(answer, Sequence) and not isinstance(answer, str) else (answer,)
    for item in found:
        if not isinstance(item, kind):
            raise TypeError(f"a {type(item).__name__} is no {kind.__name__}")
    return found


def _manifest(answer: Any) -> Manifest:
    if not isinstance(answer, Manifest):
        raise TypeError(f"a {type(answer).__name__} is no Manifest")
    return answer


def _codegen(answer: Any) -> Codegen:
    made = answer if isinstance(answer, Codegen) else Codegen(answer)
    if isinstance(made.load, type) and not issubclass(made.load, Backend):
        raise TypeError(f"{made.load.__name__} is not derived from Backend")
    if isinstance(made.load, str):
        module, _, attribute = made.load.partition(":")
        if not (module and attribute):
            raise ValueError(f"{made.load!r} is no 'package.module:attribute'")
    elif not callable(made.load):
        raise TypeError(f"a {type(made.load).__name__} is neither a path nor makes a Backend")
    return made


def _rules(answer: Any) -> tuple[FusionRule, ...]:
    found: tuple[FusionRule, ...] = _several(FusionRule, answer)
    for rule in found:
        if not isinstance(rule.name, str) or not rule.name:
            raise ValueError("a fusion rule has no name")
        for part in (rule.allows, rule.worth):
            if part is not None and not callable(part):
                raise TypeError(
                    f"fusion rule {rule.name!r} has a {type(part).__name__} in place of a function"
                )
        if isinstance(rule.backends, str) or not all(isinstance(name, str) for name in rule.backends):
            raise TypeError(f"fusion rule {rule.name!r} names no backends in `backends`")
    return found


def _device(answer: Any) -> object:
    from polyfuse.runtime.devices.device import Device  # which imports torch: manifests are read without it

    if not isinstance(answer, Device):
        raise TypeError(f"a {type(answer).__name__} is no Device")
    return answer


def _timer(answer: Any) -> Timer:
    if not isinstance(answer, Timer):
        raise TypeError(f"a {type(answer).__name__} is no Timer")
    return answer


def _lowerings(answer: Any) -> dict[str, Lowering]:
    if not isinstance(answer, Mapping):
        raise TypeError(f"a {type(answer).__name__} is no mapping of operators to lowerings")
    table: dict[str, Lowering] = {}
    for name, row in answer.items():
        lowering = row if isinstance(row, Lowering) else Lowering(row)
        if not isinstance(name, str) or not callable(lowering.function):
            raise TypeError(f"{name!r} is not the name of an operator with a function")
        table[name] = lowering
    return table


def _rewrites(answer: Any) -> tuple[Rewrite, ...]:
    found: tuple[Rewrite, ...] = _several(Rewrite, answer)
    for rewrite in found:
        unknown = [stage for stage in rewrite.stages if stage not in STAGES]
        if unknown:
            raise ValueError(f"rewrite {rewrite.name} names the stage {unknown[0]!r}, which does not exist")
    return found


def _choices(answer: Any) -> tuple[Choice, ...]:
    return _several(Choice, answer)


def _findings(answer: Any) -> tuple[Finding, ...]:
    return _several(Finding, answer)


def _texts(answer: Any) -> tuple[str, ...]:
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise TypeError("the answer must be a sequence of texts")
    found = tuple(answer)
    if not all(isinstance(fact, str) for fact in found):
        raise TypeError("the answer must be a sequence of texts")
    return found


_CHECKS: Final[Mapping[str, Callable[[Any], object]]] = {
    "polyfuse_manifest": _manifest,
    "polyfuse_codegen": _codegen,
    "polyfuse_fusion_rules": _rules,
    "polyfuse_timer": _timer,
    "polyfuse_device": _device,
    "polyfuse_lowerings": _lowerings,
    "polyfuse_rewrites": _rewrites,
    "polyfuse_choices": _choices,
    "polyfuse_cache_key": _texts,
    "polyfuse_doctor": _findings,
}
"""By the name of the hook; a hook without a row takes any answer."""

MUST_ANSWER: Final = frozenset({"polyfuse_manifest"})
"""Hooks to which None is no answer. To any other, None says that the plugin has nothing to add."""
