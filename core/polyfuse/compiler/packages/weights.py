"""The tensors of models that go into one package: each once, however many entries read it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from polyfuse.aot.container import ALIGNMENT
from polyfuse.aot.description import Weight
from polyfuse.aot.weights import spanned
from polyfuse.base.errors import PackageError


@dataclass
class _Row:
    name: str
    kind: str
    tensor: torch.Tensor
    mutable: bool = False


class WeightTable:
    """Collects tensors, and says where each lies.

    `embedded`: whether parameters and buffers are written; constants, which have no names of the user's, are
    written in any case.
    """

    def __init__(self, *, embedded: bool) -> None:
        self._embedded = embedded
        self._rows: list[_Row] = []
        self._by_name: dict[str, int] = {}

    def add(self, entry: str, name: str, kind: str, tensor: torch.Tensor, mutable: bool = False) -> int:
        """The position of a tensor; entries share those that are the same under one name.

        Raises:
            PackageError: the tensor is not dense, or another one has its name.
        """
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            raise PackageError(
                f"{name} is a {type(tensor).__name__} of layout {tensor.layout}, which cannot be stored",
                "make it a plain dense tensor before exporting",
            )
        for candidate in (name, f"{entry}.{name}"):
            found = self._by_name.get(candidate)
            if found is None:
                self._rows.append(_Row(candidate, kind, tensor, mutable))
                self._by_name[candidate] = len(self._rows) - 1
                return len(self._rows) - 1
            if _same(self._rows[found].tensor, tensor):
                self._rows[found].mutable |= mutable
                return found
        raise PackageError(f"two tensors are called {name}", "rename one of them")

    def rows(self) -> tuple[Weight, ...]:
        """What the package says of them."""
        offsets = dict(zip(self._positions(), self._offsets(), strict=True))
        return tuple(
            Weight(
                row.name,
                row.kind,
                str(row.tensor.dtype).removeprefix("torch."),
                tuple(row.tensor.shape),
                row.tensor.stride(),
                str(row.tensor.device),
                offsets.get(position, -1),
                spanned(row.tensor).nbytes,
                row.mutable,
            )
            for position, row in enumerate(self._rows)
        )

    def written(self) -> tuple[tuple[int, torch.Tensor], ...]:
        """The tensors that are written, each with its offset."""
        tensors = (self._rows[position].tensor for position in self._positions())
        return tuple(zip(self._offsets(), tensors, strict=True))

    def _positions(self) -> list[int]:
        return [i for i, row in enumerate(self._rows) if self._embedded or row.kind == "constant"]

    def _offsets(self) -> list[int]:
        offsets: list[int] = []
        end = 0
        for position in self._positions():
            offsets.append(end)
            end += spanned(self._rows[position].tensor).nbytes
            end += -end % ALIGNMENT
        return offsets


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are one memory seen alike."""
    return (
        (first.data_ptr(), first.dtype, first.device) == (second.data_ptr(), second.dtype, second.device)
        and first.shape == second.shape
        and first.stride() == second.stride()
    )
