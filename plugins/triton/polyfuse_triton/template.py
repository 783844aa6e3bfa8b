"""Kernels whose frame is written by hand, as Triton programs: built, or taken from the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyfuse.base.digest import digest
from polyfuse.base.errors import BackendUnavailableError
from polyfuse.base.files import built_folder
from polyfuse.base.folders import writable_root
from polyfuse.base.settings import Settings
from polyfuse.plugin import Expected, Launchable, Source
from polyfuse_cuda.template import ComparedTemplate
from polyfuse_triton.launch.launcher import LauncherSource
from polyfuse_triton.target import driver_major, targets_of

_LAUNCHERS: dict[Path, LauncherSource] = {}
_LOADED: dict[Path, Launchable] = {}


def triton_template(
    name: str,
    make: Callable[[bool], Source],
    settings: Settings,
    expected: Callable[..., Expected],
    recipe: tuple[Callable[..., ComparedTemplate], tuple[Any, ...]] | None = None,
) -> ComparedTemplate:
    """A call of a Triton program; `make` writes it for aligned tensors or for any, `expected` says what it
    has to give. With a `recipe`, a function and its arguments that give the same in another process, the
    program that calls it can be stored.
    """

    def key() -> str:
        try:
            machine = _machine(settings)
        except BackendUnavailableError:  # Triton's own interpreter runs it
            machine = ()
        return digest(make(True).key, make(False).key, *machine)

    return ComparedTemplate(
        name, lambda aligned: load_source(make(aligned), settings), "triton", key, expected, recipe
    )


def _machine(settings: Settings) -> tuple[str, ...]:
    """What kernels are built for, and with."""
    names = " ".join(target.name for target in targets_of(settings))
    return names, str(driver_major()), _triton_version()


def load_source(source: Source, settings: Settings) -> Launchable:
    """A callable for a kernel, from the cache or built now."""
    targets, driver = targets_of(settings), driver_major()
    root = writable_root(settings)
    folder = root / "templates" / digest(source.key, *_machine(settings))
    if folder in _LOADED:
        return _LOADED[folder]

    def fill(made: Path) -> None:
        from polyfuse_triton.build.toolchain import build

        build([source], made, {"archs": [t.arch for t in targets], "driver": driver, "debug": False})

    built_folder(folder, fill)
    if root not in _LAUNCHERS:
        _LAUNCHERS[root] = LauncherSource(settings)
    _LOADED[folder] = _LAUNCHERS[root].load(folder)[source.key]
    return _LOADED[folder]


def _triton_version() -> str:
    from importlib import metadata

    return metadata.version("triton")
