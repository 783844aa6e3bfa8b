"""`POLYFUSE_DUMP=folder`: the text of every stage, a folder a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from polyfuse.base.files import atomic_write
from polyfuse.base.log import warn_once
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
        """Write one stage's text; `text` is called only if dumps are on.

        A text that cannot be made is replaced by the reason, and a folder that cannot be written costs the
        dump alone, with one warning: looking on must not change what is compiled.
        """
        if self.folder is None:
            return
        try:
            content = text()
        except Exception as error:
            content = f"# there is no text of this stage: {type(error).__name__}: {error}\n"
        try:
            atomic_write(self.folder / (stage if "." in stage else f"{stage}.txt"), content)
        except OSError as error:
            warn_once(
                "compiler",
                f"nothing is dumped, since {self.folder} cannot be written ({error}); name another folder "
                "with the option `dump`",
                key=f"dump {self.folder.parent}",
            )

    def path(self, stage: str) -> str:
        """The file of a stage, or ``""`` if dumps are off."""
        return "" if self.folder is None else str(self.folder / stage)
