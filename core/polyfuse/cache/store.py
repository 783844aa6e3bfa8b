"""The kernel store: folders addressed by what they were built from.

A unit is a folder made by one build, holding one or more kernels. It is filled under a temporary name beside
its final one and renamed, so a folder with a final name is complete. A small pointer file for each kernel
names its unit; pointers are written after the rename. Whatever is missing or damaged is a miss, and is built
again: before a unit is loaded, its files are compared with their digests (`units.py`).

Any number of processes may use one store. A lock is held only while a unit is built, so that eight processes
that need the same one run one compiler; none is needed to read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from polyfuse.base.files import locked, publish_folder, remove_folder, scratch_folder
from polyfuse.base.folders import process_folder, readable_root, writable_root
from polyfuse.base.log import warn_once
from polyfuse.cache.artifacts import CONTENTS, is_address, mark_used
from polyfuse.cache.keys import unit_key
from polyfuse.cache.limit import trim_if_due
from polyfuse.cache.records import read_record, write_record
from polyfuse.cache.units import seal_unit, unit_kernels, unit_size

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.cache.sharing import Sharing


@dataclass(frozen=True)
class Located:
    """Where a kernel lies: the folder of its unit, and the `Source.key` under which `Backend.load` returns
    it.
    """

    folder: Path
    source_key: str


class KernelStore:
    """Built kernels under one root folder.

    Attributes:
        root: the folder.
        limit: most bytes to keep there; 0: any number.
        sharing: exchanges artifacts with other machines; None: nothing does.
        also: another folder in which kernels are looked up, and that is only read; None: there is none.
        moved: whether nothing is added here any more.
    """

    def __init__(
        self,
        root: Path,
        *,
        lock_timeout: float = 600.0,
        limit: int = 0,
        sharing: Sharing | None = None,
        also: Path | None = None,
    ) -> None:
        self.root = root
        self.also = also
        self.limit = limit
        self.sharing = sharing
        self._kernels = root / "kernels"
        self._locks = root / "locks"
        self._lock_timeout = lock_timeout
        self.moved = False

    @staticmethod
    def open(settings: Settings, *, shared: bool = False) -> KernelStore:
        """Return the store that the settings ask for, or a temporary one where that cannot be written.

        Args:
            shared: exchange artifacts with the remote store of the settings.
        """
        root = writable_root(settings)
        sharing = None
        if shared and settings.cache and settings.remote_cache:
            from polyfuse.cache.sealing import read_secret
            from polyfuse.cache.sharing import Sharing  # few have a remote store

            secret = read_secret(settings.remote_key)
            sharing = Sharing(root, settings.remote_cache, secret, lookup=settings.remote_lookup)
        return KernelStore(
            root,
            also=readable_root(settings),
            lock_timeout=float(settings.build_timeout),
            limit=settings.cache_limit << 20,
            sharing=sharing,
        )

    @staticmethod
    def temporary() -> KernelStore:
        """Return a store that belongs to this process and goes away with it."""
        return KernelStore(process_folder())

    def move(self, why: str) -> None:
        """Let this process add what it builds to a temporary folder from now on, and say why."""
        self.moved = True
        warn_once(
            "cache",
            f"{why}, or name another folder with the option `cache_dir`; this process keeps what it builds in"
            f" the temporary folder {process_folder()}, and the next one builds it again",
            key=f"moved {self.root}",
        )

    def find(self, key: str) -> Located | None:
        """Return where a kernel lies, or None when it is not there in full, as it was built."""
        found = self._find(key)
        if found is None and self.also is not None:
            found = KernelStore(self.also)._find(key)
        return KernelStore.temporary()._find(key) if found is None and self.moved else found

    def _find(self, key: str) -> Located | None:
        unit = read_record(self._pointer(key)).get("unit")
        if not is_address(unit):
            return None
        folder = self._unit(str(unit))
        source_key = (unit_kernels(folder) or {}).get(key)
        if source_key is None:
            return None
        mark_used(folder / CONTENTS)
        return Located(folder, source_key)

    def fetch_unit(self, unit: str) -> Path | None:
        """The folder of a unit of kernels, from the remote store if it is not here; None: neither has it."""

        def here(name: str) -> Path | None:
            folder = self._unit(name)
            return None if unit_kernels(folder) is None else folder

        if self.sharing is None:
            return here(unit)
        return self.sharing.fetch_unit(unit, self._add, here)

    def fetch(self, keys: Sequence[str]) -> None:
        """Get those kernels from the remote store, if there is one, that are not here."""
        if self.sharing is not None:
            missing = [key for key in dict.fromkeys(keys) if self.find(key) is None]
            self.sharing.fetch_kernels(missing, self._add)

    def add(self, kernels: Mapping[str, str], build: Callable[[Path], None]) -> Path:
        """Build kernels as one unit, unless it is there, and return its folder.

        `kernels` maps kernel keys to source keys. `build` fills the folder that it is given. What it raises
        is passed on, and nothing is left behind. Raises `CacheError` when another process holds the lock for
        too long.
        """
        folder, made = self._add(kernels, build)
        if made and self.sharing is not None:
            self.sharing.give_unit(folder, kernels)
        if made and self.limit:
            trim_if_due(self.root, self.limit, unit_size(folder))
        return folder

    def _add(self, kernels: Mapping[str, str], build: Callable[[Path], None]) -> tuple[Path, bool]:
        """Build kernels unless they are there, and return their folder and whether they were not."""
        unit = unit_key(kernels)
        folder = self._unit(unit)
        made = False
        if unit_kernels(folder) is None:
            with locked(self._locks / f"{unit}.lock", self._lock_timeout):
                # Another process may have built it while this one waited.
                if unit_kernels(folder) is None:
                    self._make(folder, kernels, build)
                    made = True
        mark_used(folder / CONTENTS)
        for key in kernels:
            write_record(self._pointer(key), {"unit": unit}, keep_equal=True)
        return folder, made

    def seen(self, graph: str) -> bool:
        """Whether kernels of a graph were asked for before, by any process; they will have been from now on.

        That is a hint at what is worth preparing: the kernels themselves may be there or not.
        """
        mark = self.root / "graphs" / graph[:2] / graph
        if mark.exists():
            return True
        with contextlib.suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        return False

    def forget(self, key: str) -> None:
        """Drop a kernel that was found but does not load; the next look-up misses."""
        self._pointer(key).unlink(missing_ok=True)

    def discard(self, folder: Path) -> None:
        """Drop a whole unit, for instance one whose files are damaged."""
        remove_folder(folder)

    def _make(self, folder: Path, kernels: Mapping[str, str], build: Callable[[Path], None]) -> None:
        if folder.exists():  # incomplete or damaged: something outside removed or changed files
            self.discard(folder)
        with scratch_folder(folder) as scratch:
            build(scratch)
            seal_unit(scratch, kernels)
            publish_folder(scratch, folder)

    def _unit(self, unit: str) -> Path:
        return self._kernels / unit[:2] / unit

    def _pointer(self, key: str) -> Path:
        return self._kernels / key[:2] / f"{key}.json"
