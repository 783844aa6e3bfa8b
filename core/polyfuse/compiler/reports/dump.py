"""`POLYFUSE_DUMP=folder`: the text of every stage, a folder a graph. With `TORCH_TRACE=folder` the same texts
are artifacts of torch's structured trace, and `TORCH_LOGS` prints some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polyfuse.base.files import atomic_write
from polyfuse.base.log import warn_once
from polyfuse.base.settings import Settings
from polyfuse.base.text import PassText
from polyfuse.compiler.reports.logs import artifact_of
from polyfuse.torch_compat.tracing.structured import is_logged, is_traced, log_artifact, trace_artifact


@dataclass(frozen=True)
class Dump:
    """Where one graph's texts go; None: to no folder."""

    folder: Path | None
    graph: str = ""

    @staticmethod
    def open(settings: Settings, graph: str) -> Dump:
        """The dump of a graph under these settings."""
        root = settings.dump_folder()
        return Dump(None if root is None else root / graph, graph)

    @property
    def wanted(self) -> bool:
        """Whether anybody reads the texts."""
        return self.folder is not None or is_traced()

    def write(self, stage: str, text: Callable[[], str]) -> None:
        """Write one stage's text, and add it to torch's structured trace and logs; `text` is called only if
        somebody reads it.

        A text that cannot be made is replaced by the reason, and a folder that cannot be written costs the
        dump alone, with one warning: looking on must not change what is compiled.
        """
        artifact = artifact_of(stage)
        logged = bool(artifact) and is_logged(artifact)
        if not self.wanted and not logged:
            return
        file = stage if "." in stage else f"{stage}.txt"
        try:
            content = text()
        except Exception as error:
            content = f"# there is no text of this stage: {type(error).__name__}: {error}\n"
        if logged:
            log_artifact(artifact, f"polyfuse {self.graph}, {file}:\n{content}")
        if is_traced():
            trace_artifact(f"polyfuse_{file.replace('/', '_')}", partial(str, content))
        if self.folder is None:
            return
        try:
            atomic_write(self.folder / file, content)
        except OSError as error:
            warn_once(
                "compiler",
                f"nothing is dumped, since {self.folder} cannot be written ({error}); name another folder "
                "with the option `dump`",
                key=f"dump {self.folder.parent}",
            )

    def write_passes(self, stage: str, passes: Iterable[PassText]) -> None:
        """Write the text before and after each pass of a stage that changed something, in a folder of the
        stage's passes.
        """
        for number, found in enumerate(passes, 1):
            name = f"{stage}-passes/{number:02}-{found.name}"
            self.write(f"{name}.before.txt", partial(str, found.before))
            self.write(f"{name}.after.txt", partial(str, found.after))

    def path(self, stage: str) -> str:
        """The file of a stage, or ``""`` if dumps are off."""
        return "" if self.folder is None else str(self.folder / stage)
