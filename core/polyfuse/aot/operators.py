"""Chosen operators of eager mode, computed by compiled kernels that are stored on disk:
`<root>/operators/<namespace>/<device>/<operator>.json` lists them, and `lib` beside it holds their packages.

Any number of processes may use one folder. A listing that cannot be read is empty, and a row whose package is
gone is a miss: it is compiled again.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from polyfuse.aot.loaded import Package
from polyfuse.aot.loading import load
from polyfuse.base.digest import digest
from polyfuse.base.errors import PackageError, PolyfuseError, UnsupportedError
from polyfuse.base.files import locked
from polyfuse.base.log import get_logger, warn_once
from polyfuse.cache.records import read_record, write_record
from polyfuse.torch_compat import dispatch
from polyfuse.torch_compat.ops import resolve
from polyfuse.torch_compat.tracing import pytree

_log = get_logger("aot")

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)

_BUSY = threading.local()
"""Whether this thread compiles, or is within a compiled operator: what is called then is torch's own."""


class Call:
    """One kind of call of an operator: its tensors by type and layout, and everything else by value.

    Attributes:
        text: the same for calls that one compiled form serves.
        tensors: positions of tensors among the leaves.
    """

    def __init__(self, leaves: Sequence[Any], spec: Any, dynamic: bool) -> None:
        self.leaves = list(leaves)
        self.spec = spec
        self.tensors = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        self.dynamic = dynamic and all(leaves[i].is_contiguous() for i in self.tensors)
        self.text = "; ".join(map(self._leaf, leaves)) + f"; {spec}"

    @property
    def given(self) -> list[torch.Tensor]:
        """The tensors."""
        return [self.leaves[i] for i in self.tensors]

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, Mapping[str, Any]]:
        """The arguments of the call with other tensors in place of its own."""
        leaves = list(self.leaves)
        for i, tensor in zip(self.tensors, tensors, strict=True):
            leaves[i] = tensor
        found: tuple[Any, Mapping[str, Any]] = pytree.unflatten(leaves, self.spec)
        return found

    def _leaf(self, leaf: Any) -> str:
        if isinstance(leaf, torch.Tensor):
            # sizes 0 and 1 are compiled in: they broadcast, or leave nothing to do
            sizes = [n if n < 2 or not self.dynamic else "any" for n in leaf.shape]
            strides = "contiguous" if self.dynamic else list(leaf.stride())
            return f"{leaf.dtype} {leaf.device} {sizes} {strides}"
        return f"{type(leaf).__name__} {leaf!r}"


Maker = Callable[[Any, Call, Path], str]
"""Compiles an operator for a kind of call into a package at a path, or returns why it cannot be."""


class EagerOperators:
    """While it is open, calls of chosen operators on one type of device are computed by compiled kernels,
    where they can be; other calls by torch's own kernel. Gradients are torch's formulas, as ever.

    Args:
        names: operators such as `aten._softmax.default`.
        device_type: whose kernels are replaced.
        root: folder of the store.
        about: what compiled operators depend on besides their calls; others are not used.
        dynamic: whether one compiled form serves all sizes.
        make: compiles.
        timeout: seconds that a lock is waited for.

    Attributes:
        counts: how many kinds of calls were `compiled` or `found` on disk, and how many calls were computed
            (`calls`) or left to torch (`eager`).
        refusals: why calls were left to torch, by operator.

    Raises:
        UnsupportedError: an operator cannot be replaced; the message says why.
    """

    def __init__(
        self,
        names: Iterable[str],
        device_type: str,
        root: Path,
        about: str,
        dynamic: bool,
        make: Maker,
        timeout: float = 600.0,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.refusals: dict[str, str] = {}
        self._about = about
        self._dynamic = dynamic
        self._make = make
        self._lock = threading.RLock()
        self._known: dict[tuple[str, str], Package | None] = {}
        self._overrides: list[dispatch.Override] = []
        chosen = {str(op): op for op in map(_operator, names)}
        for name, op in chosen.items():
            reason = dispatch.refusal(op, device_type)
            if reason:
                raise UnsupportedError(f"{name} cannot be replaced: {reason}", "leave it out")
        for name, op in chosen.items():
            folder = OperatorFolder(root, name, device_type, timeout)
            self._overrides.append(dispatch.Override(op, device_type, self._kernel(name, op, folder)))

    def close(self) -> None:
        """Put torch's own kernels back."""
        for override in self._overrides:
            override.close()
        self._overrides.clear()

    def __enter__(self) -> EagerOperators:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _kernel(self, name: str, op: Any, folder: OperatorFolder) -> dispatch.Kernel:
        def kernel(own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if getattr(_BUSY, "now", False):
                return own(*args, **kwargs)
            _BUSY.now = True
            try:
                leaves, spec = pytree.flatten((args, kwargs))
                found, tensors = self._compiled(name, op, folder, leaves, spec)
                if found is not None:
                    with torch.no_grad():
                        result = found(*tensors)
                    self.counts["calls"] += 1
                    return result
            except PackageError as error:  # sizes that the compiled form does not serve
                self._refuse(name, str(error))
            finally:
                _BUSY.now = False
            self.counts["eager"] += 1
            return own(*args, **kwargs)

        return kernel

    def _compiled(
        self, name: str, op: Any, folder: OperatorFolder, leaves: Sequence[Any], spec: Any
    ) -> tuple[Package | None, list[torch.Tensor]]:
        odd = [leaf for leaf in leaves if not isinstance(leaf, (torch.Tensor, *_PLAIN))]
        if odd or any(isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided for leaf in leaves):
            self._refuse(
                name, f"an argument is a {type(odd[0]).__name__ if odd else 'tensor that is not dense'}"
            )
            return None, []
        call = Call(leaves, spec, self._dynamic)
        with self._lock:
            if (name, call.text) not in self._known:
                self._known[name, call.text] = self._loaded(name, op, folder, call)
            return self._known[name, call.text], call.given

    def _loaded(self, name: str, op: Any, folder: OperatorFolder, call: Call) -> Package | None:
        """The compiled form of a kind of call, from disk if it is there; None: it is left to torch."""
        key = f"{self._about}; {call.text}"

        def make(path: Path) -> str:
            self.counts["compiled"] += 1
            return self._make(op, call, path)

        for _ in range(2):
            try:
                row = folder.find(key)
                if row is not None:
                    self.counts["found"] += 1
                else:
                    row = folder.add(key, make)
            except (PolyfuseError, OSError) as error:
                warn_once(
                    "aot",
                    f"compiled operators cannot be written to {folder.folder} ({error}); free space, or name"
                    " another folder with the option `cache_dir`",
                )
                return None
            if row.refusal:
                self._refuse(name, row.refusal)
                return None
            found = self._read(folder, row)
            if found is not None:
                return found
        self._refuse(name, "what was compiled does not load")
        return None

    def _read(self, folder: OperatorFolder, row: Row) -> Package | None:
        try:
            return load(folder.path(row))
        except PolyfuseError as error:
            _log.info("a compiled operator does not load and is compiled again: %s", error)
            folder.discard(row)
            return None

    def _refuse(self, name: str, reason: str) -> None:
        if name not in self.refusals:
            _log.info("%s is left to eager mode: %s", name, reason)
        self.refusals[name] = reason


def _operator(name: str) -> Any:
    try:
        found = resolve(name.replace("::", "."))
    except LookupError as error:
        raise UnsupportedError(f"torch has no operator {name}", "correct its name") from error
    overloads = getattr(found, "overloads", None)
    if overloads is not None and "default" in overloads():
        return found.default
    return found


@dataclass(frozen=True)
class Row:
    """What is known of one kind of call.

    Attributes:
        file: the package's name; empty where there is none.
        refusal: why there is none.
    """

    file: str
    refusal: str = ""


class OperatorFolder:
    """The compiled forms of one operator on one type of device."""

    def __init__(self, root: Path, operator: str, device_type: str, lock_timeout: float = 600.0) -> None:
        space, _, name = operator.partition(".")
        self.folder = root / "operators" / space / device_type
        self._listing = self.folder / f"{name}.json"
        self._lock = self.folder / f"{name}.lock"
        self._timeout = lock_timeout
        self._operator = operator

    def find(self, call: str) -> Row | None:
        """What is known of a kind of call, by its text; a package that is gone is unknown."""
        row = self._rows().get(call)
        return row if row is not None and (row.refusal or self.path(row).exists()) else None

    def path(self, row: Row) -> Path:
        """Where the package of a row lies."""
        return self.folder / "lib" / row.file

    def add(self, call: str, make: Callable[[Path], str]) -> Row:
        """What is known of a kind of call; if nothing is, `make` writes a package to the path that it gets,
        or returns why it does not. Another process that asks meanwhile waits for it.

        Raises:
            CacheError: another process holds the lock for too long.
        """
        with locked(self._lock, self._timeout):
            found = self.find(call)
            if found is not None:
                return found
            name = f"{digest(self._operator, call)}.pf"
            refusal = make(self.folder / "lib" / name)
            row = Row("" if refusal else name, refusal)
            rows = {key: vars(old) for key, old in self._rows().items()}
            write_record(self._listing, {**rows, call: vars(row)})
            return row

    def discard(self, row: Row) -> None:
        """Remove a package that does not load; the next look-up misses."""
        if row.file:
            self.path(row).unlink(missing_ok=True)

    def _rows(self) -> Mapping[str, Row]:
        try:
            found = {call: Row(**row) for call, row in read_record(self._listing).items()}  # type: ignore[arg-type]
        except TypeError:
            return {}
        # a name from a file must not lead elsewhere
        return {call: row for call, row in found.items() if row.file == os.path.basename(row.file)}
