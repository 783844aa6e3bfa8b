"""The lying backend as an installed plugin, or in place of one, for what goes through `torch.compile`."""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from polyfuse.base.settings import Settings
from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin import ENTRY_POINT_GROUP, Backend, Codegen, PluginManager
from polyfuse.plugin.session import manager
from polyfuse.testing.lying import Lying, defect


@contextmanager
def installed() -> Iterator[None]:
    """Let sessions that name the backend `lying` find it.

    ``options={"backends": ["lying"], "lying.backend": "NAME", "lying.defect": "race"}``
    """
    with tempfile.TemporaryDirectory(prefix="polyfuse-lying-") as folder:
        info = Path(folder) / "polyfuse_lying-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: polyfuse-lying\nVersion: 0\n")
        manifest = "polyfuse.testing.lying.manifest"
        (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nlying = {manifest}\n")
        sys.path.append(folder)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(folder)
            importlib.invalidate_caches()


@contextmanager
def planted(backend: str, name: str) -> Iterator[None]:
    """Let an installed backend itself be wrong in new sessions, by the name of a defect: tests of that
    backend, as they stand, should fail meanwhile.
    """
    row, honest = defect(name), manager._make

    def make(codegen: Codegen, settings: Settings) -> Backend:
        found = honest(codegen, settings)
        return Lying(found, row) if codegen.plugin == backend else found

    _replace_maker(make)
    try:
        yield
    finally:
        _replace_maker(honest)


def _replace_maker(make: Callable[[Codegen, Settings], Backend]) -> None:
    setattr(manager, "_make", make)  # noqa: B010 - for mypy, a function of one name is not another
    forget_sessions()
    torch.compiler.reset()


def made(settings: Settings) -> Lying:
    """The backend that the options ask for."""
    plugins = PluginManager(replace(settings, backends=()))
    first = next(name for name in plugins.order("cpu") if name != "lying")
    honest = plugins.backend(str(settings.plugin_option("lying", "backend", first)))
    return Lying(honest, defect(str(settings.plugin_option("lying", "defect", ""))))
