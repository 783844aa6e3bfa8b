"""Scopes for tests and debugging: an empty cache, a dump folder of its own, a look at intermediate values."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from polyfuse.base.log import warn_once
from polyfuse.base.settings import Settings, environment, set_environment
from polyfuse.runtime.checks import set_observer

_numbers = itertools.count(1)


@dataclass
class FreshCache:
    """A cache folder that was empty when its scope began.

    Attributes:
        path: the folder.
        files: bytes of each file that was made in it, by its path below the folder; known when the scope
            ends.
    """

    path: Path
    files: dict[str, int] = field(default_factory=dict)


@contextmanager
def _with_variable(name: str, folder: Path) -> Iterator[None]:
    """Name a folder in a variable of the environment meanwhile; an empty one means the same as none."""
    before = environment(name)
    set_environment(**{name: str(folder)})
    try:
        yield
    finally:
        set_environment(**{name: before})


@contextmanager
def fresh_cache(parent: str | Path | None = None, *, keep: bool = False) -> Iterator[FreshCache]:
    """Compile with empty caches meanwhile, in this process and on disk. Caches that others keep for
    hand-written kernels are left alone.

    What `torch.compile` has compiled is forgotten at the beginning and at the end, so that everything is
    compiled again. Options `cache_dir` given to `torch.compile` keep their meaning.

    Args:
        parent: where the folder is made; None: among temporary files.
        keep: whether it stays. After an exception it stays in any case, and a warning names it.
    """
    folder = Path(tempfile.mkdtemp(prefix="polyfuse-fresh-", dir=parent))
    fresh = FreshCache(folder)
    torch.compiler.reset()
    try:
        with _with_variable("POLYFUSE_CACHE_DIR", folder):
            yield fresh
    except BaseException:
        warn_once("cache", f"the cache folder {folder} is not deleted, because an exception ended its scope")
        keep = True
        raise
    finally:
        torch.compiler.reset()
        for directory, _, names in os.walk(folder):
            for name in names:
                path = Path(directory, name)
                if not name.endswith(".lock") and path.exists():
                    fresh.files[path.relative_to(folder).as_posix()] = path.stat().st_size
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def debug_folder(*, keep: bool = False) -> Iterator[Path]:
    """Dump every stage of what is compiled meanwhile to a folder of this scope alone, beside the one of the
    option `dump`; scopes may be nested. It is deleted at the end unless `keep` is set.
    """
    root = Settings.resolve().dump_folder() or Path(tempfile.gettempdir(), "polyfuse-dump")
    folder = root.with_name(f"{root.name}.{os.getpid()}.{next(_numbers)}")
    torch.compiler.reset()
    try:
        with _with_variable("POLYFUSE_DUMP", folder):
            yield folder
    finally:
        torch.compiler.reset()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Observed:
    """What a scope of `observing` saw.

    Attributes:
        count: values that were shown.
    """

    count: int = 0


@contextmanager
def observing(observer: Callable[[str, torch.Tensor], None]) -> Iterator[Observed]:
    """Show the values that graphs compiled with the option `observe` compute to a function meanwhile.

    It is called with the name of the operator in the captured graph and the value: of each kernel its
    results, of each library call its result. What stays inside a kernel is not shown; `fusion=False` leaves
    nothing inside.
    """
    seen = Observed()

    def show(name: str, value: torch.Tensor) -> None:
        seen.count += 1
        observer(name, value)

    before = set_observer(show)
    try:
        yield seen
    finally:
        set_observer(before)
