"""Ranks that share no cache folder give each other what they compiled: one compiles a graph, and its entry in
the graph cache, kernels and measurements travel through the store of the process group.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from polyfuse.base.digest import digest
from polyfuse.base.log import get_logger
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore
from polyfuse.cache.clients.ranks import RankStore
from polyfuse.cache.sharing import Sharing
from polyfuse.distributed.trials import TrialHelpers, host, serve
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.ranks.claims import Claims
from polyfuse.torch_compat.devices.present import is_present
from polyfuse.torch_compat.groups import group_of, processes_of_host, this_rank

if TYPE_CHECKING:
    from polyfuse.autotune.search import TrialBatch

_log = get_logger("ranks")

_OLD: Final = 86400.0
"""Seconds after which the mark of a program in a cache folder is removed by the next one."""

_LOOKS: Final = 100
"""How often a mark is read that another rank is writing."""


class RankExchange:
    """One rank's part in it, for a cache folder.

    Attributes:
        group: of torch, whose store is used.
        sharing: of the cache folder with that store.
        needed: whether ranks are known, or taken, not to see one folder; None: all see one.
        helpers: ranks that wait for what this one compiles now, and time candidates meanwhile; None: it
            compiles nothing for others.
    """

    def __init__(self, group: Any, claims: Claims, sharing: Sharing, secret: bytes) -> None:
        self.group = group
        self.sharing = sharing
        self.needed: bool | None = True
        self.helpers: TrialHelpers | None = None
        self._claims, self._secret = claims, secret

    def ask(self) -> None:
        """Find out anew where ranks are, unless all have said it."""
        if self.needed is not None:
            self.needed = self._claims.needed()

    @contextmanager
    def turn(
        self,
        key: str,
        seconds: float,
        store: KernelStore,
        run: Callable[[TrialBatch], Mapping[str, float | str]] | None,
    ) -> Iterator[None]:
        """Compile a graph inside, after a rank elsewhere that does so has given it, if there is one.

        Args:
            run: times candidates for that rank; None: this one does not autotune.

        Raises:
            RankError: that rank failed.
        """
        help = None
        if run is not None:
            help = host(), partial(serve, secret=self._secret, store=store, run=run)
        with self._claims.making(key, seconds, self.sharing.flush, help) as claim:
            before = self.helpers
            if claim is None:
                self.sharing.fetch_graph(key)
            elif run is not None:
                self.helpers = TrialHelpers(claim, self.sharing, self._secret)
            try:
                yield
            finally:
                self.helpers = before


def exchange_with_ranks(
    before: RankExchange | None, store: KernelStore, settings: Settings, device_types: tuple[str, ...]
) -> RankExchange | None:
    """The exchange of a cache folder, by which the kernel store shares from now on; None where all ranks see
    one folder, a remote cache serves them, or it is turned off.

    Args:
        before: what this returned for the folder last.
    """
    world = group_of()
    if not settings.rank_exchange or not settings.cache or world is None or world.store is None:
        return None
    if store.sharing is not None and (before is None or store.sharing is not before.sharing):
        return None  # a remote cache
    try:
        if before is None or before.group is not world.handle:
            secret = world.store.claim("cache/secret", secrets.token_hex(32))
            count = len(world.ranks)
            assumed = processes_of_host() != count
            machine = _machine(device_types)
            claims = Claims(world.store, this_rank(), count, _folder_id(store.root, secret), machine, assumed)
            remote = RankStore(world.store, machine, settings.rank_exchange << 20)
            sharing = Sharing(store.root, remote, secret.encode())
            before = RankExchange(world.handle, claims, sharing, secret.encode())
        before.ask()
    except Exception as error:  # of the store, or of the disk: each rank compiles for itself
        _log.info("ranks do not give each other what they compile: %s", error)
        return None
    store.sharing = before.sharing if before.needed else None
    return before


def _machine(device_types: tuple[str, ...]) -> str:
    """What machines have in common that can use each other's kernels."""
    kinds = sorted({"cpu", *filter(is_present, device_types)})
    return digest(*(device_of(kind).facts() for kind in kinds))[:16]


def _folder_id(root: Path, secret: str) -> str:
    """The same for all ranks that see one folder, and no others: what the first of them wrote there. A folder
    that was copied to other machines has no mark of this program.
    """
    folder = root / "folder_ids"
    mark = folder / digest("folder", secret)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _OLD:
                    path.unlink()
    own = secrets.token_hex(8)
    try:
        with open(mark, "x", encoding="ascii") as stream:
            stream.write(own)
        return own
    except FileExistsError:
        pass
    for _ in range(_LOOKS):
        found = mark.read_text(encoding="ascii")
        if len(found) == len(own):
            return found
        time.sleep(0.01)  # whoever made it is about to write
    return own
