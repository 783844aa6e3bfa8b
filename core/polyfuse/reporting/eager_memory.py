"""What eager mode would hold in memory for a captured graph: the graph runs operator by operator on fake
tensors of the example sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polyfuse.reporting.memory import peak_of
from polyfuse.torch_compat.tracing.storages import EagerStorage, EagerTrace, trace_storages


@dataclass(frozen=True)
class EagerInputs:
    """What a graph is called with: layouts, and values that are not tensors."""

    values: tuple[Any, ...]

    @staticmethod
    def of(inputs: Sequence[Any]) -> EagerInputs:
        """The layouts of example inputs; sizes become numbers, so that no tensor stays alive."""
        return EagerInputs(tuple(map(_layout, inputs)))

    def make(self) -> list[Any]:
        """New tensors with these layouts."""
        return [value.make() if isinstance(value, _Layout) else value for value in self.values]


@dataclass(frozen=True)
class _Layout:
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    requires_grad: bool

    def make(self) -> torch.Tensor:
        made = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)
        return made.requires_grad_(self.requires_grad)


def _layout(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        sizes = tuple(_number(n) for n in value.shape), tuple(_number(n) for n in value.stride())
        return _Layout(*sizes, value.dtype, str(value.device), value.requires_grad)
    return _number(value) if isinstance(value, torch.SymInt) else value


def _number(value: Any) -> int:
    """A size; the example's, where it is symbolic."""
    if isinstance(value, int):
        return value
    hint = value.node.hint
    return int(hint) if hint is not None else 1


def eager_memory(gm: Any, inputs: EagerInputs) -> EagerTrace | str:
    """The storages that eager mode makes for a graph, its backward included if an input needs gradients; or
    why that is unknown.
    """
    backward = any(isinstance(x, _Layout) and x.requires_grad for x in inputs.values)
    try:
        return trace_storages(gm, inputs.make, backward)
    except Exception as error:
        return f"the graph does not run on fake tensors: {type(error).__name__}: {error}".splitlines()[0]


def phase(trace: EagerTrace, backward: bool) -> dict[str, Any]:
    """One half of a trace, for JSON; its operators count from 0. What the forward saved is there at the start
    of the backward.
    """
    start, end = (trace.forward, trace.ops) if backward else (0, trace.forward)
    rows = []
    for storage in trace.storages:
        row = _within(storage, start, end)
        if row is not None:
            rows.append(row)
    steps = end - start
    peak, at = peak_of([(r["bytes"], r["first"], r["last"]) for r in rows], steps)
    return {"steps": steps, "storages": rows, "peak": peak, "peak_step": at}


def _within(storage: EagerStorage, start: int, end: int) -> dict[str, Any] | None:
    if storage.first >= end or (storage.last is not None and storage.last < start) or not storage.nbytes:
        return None
    last = None if storage.last is None or storage.last >= end else storage.last - start
    return {
        "buffers": [storage.op],
        "bytes": storage.nbytes,
        "first": max(storage.first - start, 0),
        "last": last,
    }
