"""From a kernel's text to a callable: built, or taken from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from polyfuse.base.digest import digest
from polyfuse.base.files import built_folder
from polyfuse.base.folders import writable_root
from polyfuse.plugin import Launchable, Source
from polyfuse_cuda.template import ALIGNMENT
from polyfuse_cutlass.backend import CutlassBackend
from polyfuse_cutlass.build.toolchain import build_in_worker
from polyfuse_cutlass.launch.launcher import load_unit

_LOADED: dict[Path, Launchable] = {}


class Loader:
    """Builds and loads one kernel.

    Args:
        source: its text.
        backend: says how it is compiled.
        copied: how many of its arguments, the first ones, the copy engine reads: their addresses are
            multiples of 16 bytes.
    """

    def __init__(self, source: Source, backend: CutlassBackend, copied: int) -> None:
        self._source = source
        self._root = writable_root(backend.settings)
        self._options = backend.worker_options()
        self._copied = copied

    def __call__(self, aligned: bool) -> Launchable:
        """A launcher on the current device, of aligned arguments or of any."""
        launch = self._load()
        return launch if aligned else _Moved(launch, self._copied)

    @property
    def key(self) -> str:
        """A digest of the text, and of how it is compiled."""
        facts = " ".join(f"{name}={value}" for name, value in sorted(self._options.items()))
        return digest(self._source.key, facts)

    def _load(self) -> Launchable:
        folder = self._root / "templates" / self.key
        if folder not in _LOADED:
            built_folder(folder, lambda made: build_in_worker([self._source], made, self._options))
            _LOADED[folder] = load_unit(folder)[self._source.key]
        return _LOADED[folder]


class _Moved:
    """Calls a kernel with copies of those operands that lie at odd addresses."""

    def __init__(self, launch: Launchable, copied: int) -> None:
        self._launch = launch
        self._copied = copied

    def __call__(self, *arguments: Any) -> None:
        moved = [t if t.data_ptr() % ALIGNMENT == 0 else _moved(t) for t in arguments[: self._copied]]
        self._launch(*moved, *arguments[self._copied :])


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides: of all that lies between its first and its last element."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0
    copy = tensor.as_strided((span,), (1,)).clone()
    return copy.as_strided(tensor.shape, tensor.stride())
