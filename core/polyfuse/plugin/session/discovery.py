"""Finding plugins: entry points are read and manifests imported, and nothing else."""

from __future__ import annotations

import operator
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Final, cast

from polyfuse.base.errors import DuplicateBackendError
from polyfuse.base.log import warn_once
from polyfuse.base.settings import environment
from polyfuse.base.text import brief
from polyfuse.plugin.api import API_VERSION
from polyfuse.plugin.manifest import Manifest, Requires

if TYPE_CHECKING:
    from polyfuse.plugin.hooks.registry import Registered


ENTRY_POINT_GROUP: Final = "polyfuse.backends"

_RELEASE: Final = r"\d+(?:\.\d+)*"
_LIMIT: Final = rf"(?:>=|<=|>|<)\s*{_RELEASE}"
_REQUIREMENT: Final = re.compile(rf"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*((?:{_LIMIT}(?:\s*,\s*{_LIMIT})*)?)\s*")
# "+cpu" and the like say nothing about order
_VERSION: Final = re.compile(rf"({_RELEASE})(?:\+[A-Za-z0-9.]+)?")
_ORDERS: Final[Mapping[str, Callable[[list[int], list[int]], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Candidate:
    """A plugin that was not looked at yet: what an entry point names, or what a program registered."""

    name: str
    distribution: str
    version: str
    entry_point: metadata.EntryPoint | None
    plugin: object = None


def find_candidates(entry_points: Iterable[metadata.EntryPoint] | None = None) -> tuple[Candidate, ...]:
    """Return the declared plugins by name.

    Raises `DuplicateBackendError`, naming both distributions, when two of them use one name: which of the two
    a user means cannot be guessed.
    """
    found: dict[str, Candidate] = {}
    for candidate in _installed(import_path()) if entry_points is None else map(_candidate, entry_points):
        other = found.setdefault(candidate.name, candidate)
        # One distribution may be listed twice, for instance by an editable install over a source tree.
        if other.distribution != candidate.distribution or other.entry_point != candidate.entry_point:
            raise DuplicateBackendError(
                f"distributions {other.distribution!r} and {candidate.distribution!r} both declare a plugin "
                f"named {candidate.name!r}",
                "uninstall one of them",
            )
    return tuple(found[name] for name in sorted(found))


def registered_candidates(plugins: Sequence[Registered]) -> tuple[Candidate, ...]:
    """Return the plugins that this program registered, in that order. One of them replaces an
    installed one of its name.
    """
    return tuple(Candidate(p.name, "(registered by this program)", "", None, p.plugin) for p in plugins)


def manifest_of(candidate: Candidate) -> tuple[object, Manifest]:
    """Import a plugin and return it with its manifest, or raise `ValueError` or what the plugin raises.

    What a program registered may do without a manifest: it is given one.
    """
    point = candidate.entry_point
    plugin = point.load() if point is not None else candidate.plugin
    declare = getattr(plugin, "polyfuse_manifest", None)
    if declare is None:
        if point is None:
            return plugin, Manifest(candidate.name, "", candidate.distribution, API_VERSION, offers=())
        raise ValueError(f"module {point.value} has no hook implementation `polyfuse_manifest`")
    manifest = declare()
    if not isinstance(manifest, Manifest):
        raise ValueError(f"`polyfuse_manifest` returned {type(manifest).__name__} instead of a Manifest")
    if manifest.name != candidate.name:
        raise ValueError(f"the plugin is named {candidate.name!r} but the manifest says {manifest.name!r}")
    wrong = _malformed(manifest)
    if wrong:
        raise ValueError(f"its manifest's {wrong}; report it to the plugin's author")
    return plugin, manifest


def _malformed(manifest: Manifest) -> str:
    """Return which field is not of the type that it is declared with; an empty text if none."""
    for name, fits in _FIELDS.items():
        value = getattr(manifest, name)
        if not fits(value):
            return f"{name} is malformed: {value!r:.80}"
    for name in ("packages", "programs", "hardware"):
        value = getattr(manifest.requires, name)
        if not _is_tuple(value, str):
            return f"requires.{name} is malformed: {value!r:.80}"
    return ""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_tuple(value: object, kind: type) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, kind) for each in value)


def _is_mapping(value: object, kind: type) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(each, kind) for key, each in value.items()
    )


_FIELDS: Final[Mapping[str, Callable[[object], bool]]] = {
    **dict.fromkeys(
        ("name", "version", "distribution", "load", "loader", "host_loader", "summary"), _is_text
    ),
    "api": lambda v: _is_tuple(v, int) and len(cast(tuple[int, ...], v)) == 2,
    "device_types": lambda v: _is_tuple(v, str),
    "priority": lambda v: _is_mapping(v, int),
    "offers": lambda v: _is_tuple(v, str),
    "requires": lambda v: isinstance(v, Requires),
    "options": lambda v: _is_mapping(v, str),
    "last_resort": lambda v: isinstance(v, bool),
    "specialist": lambda v: isinstance(v, bool),
}


def missing_requirement(requires: Requires, path: ImportPath | None = None) -> str:
    """Return what is missing, as a clause with its remedy, or an empty text.

    Args:
        path: as `import_path` returns it, for callers who ask about many plugins.
    """
    for text in requires.packages:
        problem = _missing_package(text, path or import_path())
        if problem:
            return problem
    for text in requires.programs:
        if not any(_finds(alternative) for alternative in text.split("|")):
            names = " or ".join(part for part in text.split("|"))
            return f"no program {names} was found; install one and put its folder on PATH"
    return ""


ImportPath = tuple[tuple[str, int], ...]
"""Each folder of `sys.path` with the time of its last change: installing a distribution changes it."""


def import_path() -> ImportPath:
    """The folders of `sys.path` as they are now; what was found in them is remembered until they change."""
    return tuple((path, _changed(path)) for path in map(str, sys.path))


def _changed(path: str) -> int:
    try:
        return os.stat(path or ".").st_mtime_ns
    except (OSError, ValueError):
        return 0


@lru_cache(maxsize=1)
def _installed(_: ImportPath) -> tuple[Candidate, ...]:
    """Every plugin that a distribution declares. Each session asks, and reading what a hundred distributions
    declare takes longer than all else that a session does."""
    found: list[Candidate] = []
    seen: set[str] = set()
    hidden = _several_times()
    for dist in metadata.distributions():
        name = "(unknown)"
        try:
            declared = dist.read_text("entry_points.txt") or ""
            if ENTRY_POINT_GROUP not in declared:
                continue
            name, version = _facts(dist)
            # another one of its name that is earlier on the path is the one that is imported
            if name not in seen and (_plain(name) not in hidden or _is_first(name, dist)):
                seen.add(name)
                found += (Candidate(p.name, name, version, p) for p in _entry_points(declared))
        except Exception as error:
            cause = f"what distribution {name!r} declares cannot be read: {brief(error)}"
            warn_once("plugin", f"{cause}; its plugins are left out until it is installed anew")
    return tuple(found)


def _several_times() -> frozenset[str]:
    """Distributions that lie in more than one folder of the path, by their plain names. Asking for the first
    one of each name takes longer than reading what it declares.
    """
    found: Counter[str] = Counter()
    for path in dict.fromkeys(map(str, sys.path)):
        try:
            names = os.listdir(path or ".")
        except OSError:
            continue
        here = (name.partition("-")[0] for name in names if name.endswith((".dist-info", ".egg-info")))
        found.update({_plain(name.removesuffix(".egg-info")) for name in here})
    return frozenset(name for name, count in found.items() if count > 1)


def _plain(name: str) -> str:
    return name.replace("-", "_").replace(".", "_").lower()


def _is_first(name: str, dist: metadata.Distribution) -> bool:
    return metadata.distribution(name).locate_file("") == dist.locate_file("")


def _entry_points(text: str) -> Iterator[metadata.EntryPoint]:
    """Those of plugins in a file of entry points, which is read already."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[] ")
        elif group == ENTRY_POINT_GROUP and line and line[0] not in "#;":
            name, equals, value = line.partition("=")
            if not equals:
                raise ValueError(f"{line!r} names nothing")
            yield metadata.EntryPoint(name.strip(), value.strip(), group)


@lru_cache(maxsize=64)
def _installed_version(package: str, _: ImportPath) -> str | None:
    """The version of a distribution; None where it is not installed."""
    try:
        return _facts(metadata.distribution(package))[1]
    except metadata.PackageNotFoundError:
        return None


def _candidate(point: metadata.EntryPoint) -> Candidate:
    if point.dist is None:
        return Candidate(point.name, "(unknown)", "", point)
    return Candidate(point.name, *_facts(point.dist), point)


def _facts(dist: metadata.Distribution) -> tuple[str, str]:
    """The name and version of a distribution. Of its metadata, only the lines that say them are parsed: most
    of the rest is a long description."""
    text = dist.read_text("METADATA") or dist.read_text("PKG-INFO")
    if text is None:
        return dist.metadata["Name"], dist.metadata["Version"]
    rows = dict(re.findall(r"^(Name|Version):[ \t]*(\S+)", text.partition("\n\n")[0], re.MULTILINE))
    return rows.get("Name", "(unknown)"), rows.get("Version", "")


@lru_cache(maxsize=64)
def _missing_package(text: str, path: ImportPath) -> str:
    plain = plain_requirement(text)
    if plain is not None:
        name, limits = plain
        version = _installed_version(name, path)
        if version is None:
            return _not_installed(name, text)
        fits = is_within(limits, version)
        if fits is not None:
            return "" if fits else _of_another_version(name, version, text)
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return f"the manifest's requirement {text!r} is malformed; report it to the plugin's author"
    if requirement.marker is not None and not requirement.marker.evaluate():
        return ""
    version = _installed_version(requirement.name, path)
    if version is None:
        return _not_installed(requirement.name, text)
    fits = requirement.specifier.contains(version, prereleases=True)
    return "" if fits else _of_another_version(requirement.name, version, text)


def _not_installed(name: str, text: str) -> str:
    return f"package {name} is not installed; run pip install '{text}'"


def _of_another_version(name: str, version: str, text: str) -> str:
    return f"package {name} is {version}; run pip install '{text}'"


def _finds(program: str) -> bool:
    if program.startswith("$"):
        words = environment(program[1:]).split()
        return bool(words) and shutil.which(words[0]) is not None
    return shutil.which(program) is not None


def plain_requirement(text: str) -> tuple[str, str] | None:
    """The name and the limits of a requirement such as ``"numpy>=1.26,<3"``; None if it says more, which is
    for `packaging`: to import that takes longer than all manifests.
    """
    found = _REQUIREMENT.fullmatch(text)
    return (found[1], found[2]) if found else None


def is_within(limits: str, version: str) -> bool | None:
    """Whether a version is within limits that `plain_requirement` gave; None if it is no plain release."""
    release = _VERSION.fullmatch(version)
    if release is None:
        return None
    return all(
        _ORDERS[sign](*_same_length(release[1], bound))
        for sign, bound in re.findall(rf"(>=|<=|>|<)\s*({_RELEASE})", limits)
    )


def _same_length(one: str, other: str) -> tuple[list[int], list[int]]:
    """Two releases as numbers; what is left out is 0."""
    parts = [[int(number) for number in text.split(".")] for text in (one, other)]
    longest = max(map(len, parts))
    first, second = (numbers + [0] * (longest - len(numbers)) for numbers in parts)
    return first, second
