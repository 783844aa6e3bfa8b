"""Kernels whose frame is written by hand: how they are built, and called as part of a program.

They are calls in a graph, not loops that the scheduler knows, so they are built when they are first called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyfuse.base.digest import digest
from polyfuse.base.files import publish_folder, scratch_folder
from polyfuse.base.folders import writable_root
from polyfuse.base.settings import Settings
from polyfuse.plugin import Launchable, Source
from polyfuse_triton.launch.launcher import LauncherSource
from polyfuse_triton.target import driver_major, targets_of

__all__ = ["TemplateKernel", "load_source"]

_ALIGNMENT = 16
_LOCK = threading.Lock()
_LAUNCHERS: dict[Path, LauncherSource] = {}
_LOADED: dict[Path, Launchable] = {}


class TemplateKernel:
    """A call of a kernel, made when it is first needed.

    Called with the kernel's arguments in order: tensors, then sizes. Where all tensors begin at multiples of
    16 bytes, a kernel is used that relies on it.
    """

    records = True
    """It only launches, so that a program with it can be recorded."""

    def __init__(self, name: str, make: Callable[[bool], Source], settings: Settings) -> None:
        self.__name__ = name
        self._make = make
        self._settings = settings
        self._ready: dict[bool, Launchable] = {}

    def __call__(self, *arguments: Any) -> None:
        """Launch it on the device that its tensors are on."""
        first = arguments[0]
        aligned = all(a.data_ptr() % _ALIGNMENT == 0 for a in arguments if not isinstance(a, int))
        launch = self._ready.get(aligned)
        if first.device.type == "cpu" or first.device.index == _current_device():
            (launch or self._load(aligned))(*arguments)
            return
        with _device(first.device):
            (launch or self._load(aligned))(*arguments)

    def _load(self, aligned: bool) -> Launchable:
        with _LOCK:
            if aligned not in self._ready:
                self._ready[aligned] = load_source(self._make(aligned), self._settings)
            return self._ready[aligned]


def _current_device() -> int:
    import torch

    return torch.cuda.current_device()


def _device(device: Any) -> Any:
    import torch

    return torch.cuda.device(device)


def load_source(source: Source, settings: Settings) -> Launchable:
    """A callable for a kernel, from the cache or built now."""
    targets, driver = targets_of(settings), driver_major()
    root = writable_root(settings)
    names = " ".join(target.name for target in targets)
    folder = root / "templates" / digest(source.key, names, str(driver), _triton_version())
    if folder in _LOADED:
        return _LOADED[folder]
    if not folder.exists():
        from polyfuse_triton.build.toolchain import build

        with scratch_folder(folder) as made:
            options = {"archs": [t.arch for t in targets], "driver": driver, "debug": False}
            build([source], made, options)
            publish_folder(made, folder)
    if root not in _LAUNCHERS:
        _LAUNCHERS[root] = LauncherSource(settings)
    _LOADED[folder] = _LAUNCHERS[root].load(folder)[source.key]
    return _LOADED[folder]


def _triton_version() -> str:
    from importlib import metadata

    return metadata.version("triton")
