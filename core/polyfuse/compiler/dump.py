"""`POLYFUSE_DUMP=folder`: the text of every stage, a folder a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from polyfuse.base.files import atomic_write
from polyfuse.base.settings import Settings

__all__ = ["Dump"]


@dataclass(frozen=True)
class Dump:
    """Where one graph's texts go; None: nowhere."""

    folder: Path | None

    @staticmethod
    def open(settings: Settings, graph: str) -> Dump:
        """The dump of a graph under these settings."""
        root = settings.dump_folder()
        return Dump(None if root is None else root / graph)

    def write(self, stage: str, text: Callable[[], str]) -> None:
        """Write one stage's text; `text` is called only if dumps are on."""
        if self.folder is not None:
            name = stage if "." in stage else f"{stage}.txt"
            atomic_write(self.folder / name, text())

    def path(self, stage: str) -> str:
        """The file of a stage, or ``""`` if dumps are off."""
        return "" if self.folder is None else str(self.folder / stage)
