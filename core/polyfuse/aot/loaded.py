"""A loaded package: entries to call, and the weights that they read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from polyfuse.aot.arguments import Signature, nesting
from polyfuse.aot.container import ALIGNMENT
from polyfuse.aot.description import Argument, Description, Entry, Weight
from polyfuse.aot.weights import Mapped, aligned_copy
from polyfuse.base.errors import PackageError
from polyfuse.base.text import join_words, shorten
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.module import CompiledModule
from polyfuse.torch_compat.strides import has_overlaps
from polyfuse.torch_compat.tracing import pytree

DEFAULT = "forward"
"""The entry that calling a package calls, unless it has a single one."""


class Weights:
    """The tensors that programs of a package read besides their arguments.

    Args:
        rows: what they are.
        mapped: those that lie in the package; None if none does.
        given: those that its user brings, by name.
        frozen: whether they cannot be replaced.
    """

    def __init__(
        self,
        rows: Sequence[Weight],
        mapped: Mapped | None,
        given: Mapping[str, torch.Tensor],
        frozen: bool = False,
    ) -> None:
        self.rows = tuple(rows)
        self._mapped = mapped
        self._frozen = frozen
        self._check_names(given)
        absent = [row.name for row in rows if row.offset < 0 and row.name not in given]
        if absent:
            raise PackageError(
                f"the package was made without {len(absent)} of its weights, such as {absent[0]}",
                "give them to load(path, constants={name: tensor})",
            )
        self.tensors = [self._first(row, given) for row in self.rows]

    @property
    def by_name(self) -> dict[str, torch.Tensor]:
        """The tensors in use, by name."""
        return {row.name: tensor for row, tensor in zip(self.rows, self.tensors, strict=True)}

    def replaced(self, given: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The tensors with some of them replaced; nothing is changed yet."""
        self._check_names(given)
        return [
            _fitted(row, given[row.name]) if row.name in given else tensor
            for row, tensor in zip(self.rows, self.tensors, strict=True)
        ]

    def _first(self, row: Weight, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if row.name in given:
            return _fitted(row, given[row.name])
        assert self._mapped is not None
        found = self._mapped.tensor(row)
        if not device_of(row.device).is_host:
            return found.to(row.device)
        # what a program writes to is no business of others that loaded the same package
        return aligned_copy(found) if row.mutable and row.bytes else found

    def _check_names(self, given: Mapping[str, torch.Tensor]) -> None:
        if self._frozen and given:
            raise PackageError(
                "the package was made with the option `freezing`: it has what followed from the weights"
                " of the model when it was made, not all of these",
                "make it again with other weights, or without the option",
            )
        names = {row.name for row in self.rows}
        unknown = sorted(set(given) - names)
        if unknown:
            raise PackageError(
                f"the package has no weight {unknown[0]!r}",
                "`Package.constants` has the names that there are",
            )


def _fitted(row: Weight, value: torch.Tensor) -> torch.Tensor:
    """A tensor as a program reads it: itself where its layout is right and nothing will write to it."""
    if not isinstance(value, torch.Tensor):
        raise PackageError(f"{row.name} is a {type(value).__name__}", "give a tensor")
    if tuple(value.shape) != row.size or str(value.dtype) != f"torch.{row.dtype}":
        raise PackageError(
            f"{row.name} is {value.dtype} of size {tuple(value.shape)} where torch.{row.dtype} of size"
            f" {row.size} was compiled",
            "give a tensor of that type and size, or make the package again",
        )
    moved = value.detach().to(row.device)
    if moved.stride() != row.stride:
        moved = torch.empty_strided(row.size, row.stride, dtype=value.dtype, device=row.device).copy_(moved)
    shared = moved.data_ptr() == value.data_ptr()
    if moved.numel() and (moved.data_ptr() % ALIGNMENT or (row.mutable and shared)):
        return aligned_copy(moved)
    return moved


class LoadedEntry:
    """One function of a package. It is called as what it was made of, and computes no gradients.

    Args:
        name: for messages.
        entry: what it is.
        revive: makes the program from its text and kernels.
        weights: all tensors of the package.
    """

    def __init__(
        self, name: str, entry: Entry, revive: Callable[[Entry, Weights], CompiledModule], weights: Weights
    ) -> None:
        self.name = name
        self.entry = entry
        self._weights = weights
        self._revive = revive
        self._signature = Signature(name, entry)
        self._out_spec = nesting(entry.out_tree)
        self._device_types = sorted({a.device for a in entry.arguments if a.device} | {"cpu"})
        self._mutates = any(a.mutated for a in entry.arguments)
        self._arguments = [(i, s.position) for i, s in enumerate(entry.inputs) if s.origin == "argument"]
        self._ready = self._made()

    def _made(self) -> tuple[CompiledModule, list[Any]]:
        """The program, and its inputs without arguments: both at once, for a call that begins meanwhile."""
        tensors = self._weights.tensors
        inputs = [tensors[s.position] if s.origin == "weight" else None for s in self.entry.inputs]
        return self._revive(self.entry, self._weights), inputs

    def renew(self) -> None:
        """Make the program anew: its weights have moved, and addresses that it recorded are stale."""
        self._ready = self._made()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = self._signature.leaves(args, kwargs)
        symbols = self._signature.check(leaves)
        if self._mutates:
            self._check_apart(leaves)
        copies = {
            i: _laid_out(leaves[i], self._signature.layout(argument, symbols))
            for i, argument in enumerate(self.entry.arguments)
            if argument.kind == "tensor" and not self._fits(leaves[i], argument, symbols)
        }
        program, stored = self._ready
        inputs = stored.copy()  # the program empties it
        for i, position in self._arguments:
            inputs[i] = copies.get(position, leaves[position])
        with _plain(self._device_types):
            results = list(program(inputs))
            for i, copy in copies.items():
                if self.entry.arguments[i].mutated:
                    leaves[i].copy_(copy)
        if copies:
            originals = {id(copy): leaves[i] for i, copy in copies.items()}
            results = [originals.get(id(result), result) for result in results]
        return pytree.unflatten(results, self._out_spec)

    def _fits(self, value: torch.Tensor, argument: Argument, symbols: Mapping[str, int]) -> bool:
        strides = self._signature.layout(argument, symbols)
        return (
            all(
                n < 2 or s == wanted
                for n, s, wanted in zip(value.shape, value.stride(), strides, strict=True)
            )
            or not value.numel()
        )

    def _check_apart(self, leaves: Sequence[Any]) -> None:
        """Refuse tensors that share memory where one is written to: what others show of it would be stale."""
        seen: dict[int, Argument] = {}
        for value, argument in zip(leaves, self.entry.arguments, strict=True):
            if argument.kind != "tensor" or not value.numel():
                continue
            other = seen.setdefault(value.untyped_storage().data_ptr(), argument)
            if other is not argument and (other.mutated or argument.mutated):
                raise PackageError(
                    f"{self.name}: {other.name} and {argument.name} share memory, and one is written to",
                    "pass a copy of the other",
                )


def _laid_out(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    try:
        if has_overlaps(value.shape, strides, repeated=True):
            raise RuntimeError("elements would share memory")
        copy = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
        return copy.copy_(value.detach())
    except RuntimeError as error:
        raise PackageError(
            f"an argument cannot be laid out with the strides {strides} ({shorten(str(error), 200)})",
            "make the package again, with an example of that layout",
        ) from error


@contextmanager
def _plain(device_types: Sequence[str]) -> Iterator[None]:
    """Without gradients, and without casts: those of the model are in its program."""
    with torch.no_grad(), ExitStack() as stack:
        for device in device_types:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


class Package:
    """A package that was loaded. Calling it calls the entry `forward`, or the only one.

    Attributes:
        path: of its file.
        description: what it says of itself.
    """

    def __init__(
        self,
        path: Path,
        description: Description,
        weights: Weights,
        revive: Callable[[Entry, Weights], CompiledModule],
    ) -> None:
        self.path = path
        self.description = description
        self._weights = weights
        self._lock = threading.Lock()
        self._entries = {
            name: LoadedEntry(name, entry, revive, weights) for name, entry in description.entries.items()
        }
        first = DEFAULT if DEFAULT in self._entries else next(iter(self._entries))
        self._default = self._entries[first] if first == DEFAULT or len(self._entries) == 1 else None

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of what can be called."""
        return tuple(self._entries)

    @property
    def constants(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and constants by name, as programs read them. They are shared with others that
        loaded the same package: replace them with `load_constants`, do not write to them.
        """
        return self._weights.by_name

    def __getitem__(self, name: str) -> LoadedEntry:
        if name not in self._entries:
            raise PackageError(
                f"{self.path} has no entry {name!r}", f"it has {join_words(list(self.entries))}"
            )
        return self._entries[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._default is None:
            raise PackageError(
                f"{self.path} has several entries", f"call one of them: package[{self.entries[0]!r}](...)"
            )
        return self._default(*args, **kwargs)

    def load_constants(self, values: Mapping[str, torch.Tensor], *, strict: bool = False) -> None:
        """Replace weights by name, for calls that begin from now on.

        A tensor of the right layout is used where it is, so that what its owner writes to it is seen; others
        are copied, as are those that the program itself writes to.

        Args:
            values: names, as in the model's `state_dict`, and tensors.
            strict: whether all parameters and buffers must be given.

        Raises:
            PackageError: a name is unknown or missing, a tensor has another size or type, or the package was
                made with `freezing`.
        """
        absent = [row.name for row in self._weights.rows if row.kind != "constant" and row.name not in values]
        if strict and absent:
            raise PackageError(
                f"{len(absent)} weights are missing, {absent[0]!r} among them", "give all of them"
            )
        with self._lock:
            self._weights.tensors = self._weights.replaced(values)
            for entry in self._entries.values():
                entry.renew()
