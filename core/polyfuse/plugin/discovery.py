"""Finding plugins: entry points are read and manifests imported, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from polyfuse.base.errors import DuplicateBackendError
from polyfuse.base.settings import environment
from polyfuse.plugin.manifest import Manifest, Requires

__all__ = ["ENTRY_POINT_GROUP", "Candidate", "find_candidates", "missing_requirement", "read_manifest"]

ENTRY_POINT_GROUP: Final = "polyfuse.backends"


@dataclass(frozen=True)
class Candidate:
    """An entry point that names a plugin, not yet imported."""

    name: str
    distribution: str
    version: str
    entry_point: metadata.EntryPoint


def find_candidates(entry_points: Iterable[metadata.EntryPoint] | None = None) -> tuple[Candidate, ...]:
    """Return the declared plugins by name.

    Raises `DuplicateBackendError`, naming both distributions, when two of them use one name: which of the two
    a user means cannot be guessed.
    """
    found: dict[str, Candidate] = {}
    points = metadata.entry_points(group=ENTRY_POINT_GROUP) if entry_points is None else entry_points
    for point in points:
        candidate = _candidate(point)
        other = found.setdefault(candidate.name, candidate)
        # One distribution may be listed twice, for instance by an editable install over a source tree.
        if other.distribution != candidate.distribution or other.entry_point.value != point.value:
            raise DuplicateBackendError(
                f"distributions {other.distribution!r} and {candidate.distribution!r} both declare a plugin "
                f"named {candidate.name!r}",
                "uninstall one of them",
            )
    return tuple(found[name] for name in sorted(found))


def read_manifest(module: ModuleType, name: str) -> Manifest:
    """Return the manifest of an imported plugin module, or raise `ValueError` or what the module raises."""
    declare = getattr(module, "polyfuse_manifest", None)
    if declare is None:
        raise ValueError(f"module {module.__name__} has no hook implementation `polyfuse_manifest`")
    manifest = declare()
    if not isinstance(manifest, Manifest):
        raise ValueError(f"`polyfuse_manifest` returned {type(manifest).__name__} instead of a Manifest")
    if manifest.name != name:
        raise ValueError(f"the entry point is named {name!r} but the manifest says {manifest.name!r}")
    return manifest


def missing_requirement(requires: Requires) -> str:
    """Return what is missing, as a clause with its remedy, or an empty text."""
    for text in requires.packages:
        problem = _missing_package(text)
        if problem:
            return problem
    for text in requires.programs:
        if not any(_finds(alternative) for alternative in text.split("|")):
            names = " or ".join(part for part in text.split("|"))
            return f"no program {names} was found; install one and put its folder on PATH"
    return ""


def _candidate(point: metadata.EntryPoint) -> Candidate:
    dist = point.dist
    return Candidate(
        name=point.name,
        distribution=dist.name if dist is not None else "(unknown)",
        version=dist.version if dist is not None else "",
        entry_point=point,
    )


def _missing_package(text: str) -> str:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return f"the manifest's requirement {text!r} is malformed; report it to the plugin's author"
    if requirement.marker is not None and not requirement.marker.evaluate():
        return ""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"package {requirement.name} is not installed; run pip install '{text}'"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"package {requirement.name} is {version}; run pip install '{text}'"
    return ""


def _finds(program: str) -> bool:
    if program.startswith("$"):
        words = environment(program[1:]).split()
        return bool(words) and shutil.which(words[0]) is not None
    return shutil.which(program) is not None
