"""Compiled regions of a graph that follow each other, as one function to autograd.

AOTAutograd makes an `autograd.Function` of each graph that it differentiates, and wraps it in what any graph
may need. Of regions that need none of that, forwards and backwards are called in order here, so that autograd
sees one node, whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from polyfuse.runtime.regions.calls import RegionCall, laid_out
from polyfuse.torch_compat.autograd_functions import (
    PlainFunction,
    direct_backward,
    direct_forward,
)

_LEAST_CALLS = 2

Blank = tuple[torch.Size, torch.dtype, torch.device]
"""What a result looks like whose gradient is zero."""


class _Context:
    """What a region's forward leaves for its backward, but for tensors: autograd has these."""

    saved_tensors: Sequence[torch.Tensor] = ()

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        """The chain knows which."""

    def maybe_clear_saved_tensors(self) -> None:
        self.saved_tensors = ()


@dataclass(frozen=True)
class _Chain:
    """Calls whose values have numbers, the inputs of the chain first.

    Attributes:
        calls: in order, and the graphs that they call.
        writes: the values that others need.
        count: of values in all.
    """

    calls: Sequence[tuple[RegionCall, PlainFunction]]
    writes: tuple[int, ...]
    count: int

    def __call__(self, *inputs: Any) -> Any:
        return _ChainFunction.apply(self, *inputs)


class _ChainFunction(torch.autograd.Function):
    """A chain, as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, chain: _Chain, *inputs: Any) -> tuple[Any, ...]:
        values: list[Any] = [*inputs, *[None] * (chain.count - len(inputs))]
        contexts: list[tuple[_Context, int, Sequence[Blank]]] = []
        saved: list[torch.Tensor] = []
        fixed: set[int] = set()
        direct = direct_forward()
        for call, graph in chain.calls:
            own = _Context()
            made = graph.forward(own, [values[number] for number in call.reads], direct)
            blanks = [(v.shape, v.dtype, v.device) for v in made] if len(made) > 1 else ()
            for number, value, strides in zip(call.writes, made, call.strides, strict=True):
                values[number] = laid_out(value, strides)
            fixed.update(number for number, still in zip(call.writes, graph.fixed, strict=True) if still)
            contexts.append((own, len(saved), blanks))
            saved.extend(own.saved_tensors)
            own.maybe_clear_saved_tensors()
            for number in call.frees:
                values[number] = None
        ctx.chain, ctx.contexts = chain, contexts
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[values[number] for number in chain.writes if number in fixed])
        return tuple(values[number] for number in chain.writes)

    @staticmethod
    @torch.compiler.disable(reason="already compiled")
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        chain: _Chain = ctx.chain
        saved = list(ctx.saved_tensors)
        ctx.maybe_clear_saved_tensors()
        known = {n: g for n, g in zip(chain.writes, gradients, strict=True) if g is not None}
        del gradients
        direct, begun = direct_backward(), False
        for (call, graph), (own, first, blanks) in zip(
            reversed(chain.calls), reversed(ctx.contexts), strict=True
        ):
            own.saved_tensors = tuple(saved[first:])
            del saved[first:]
            ahead = [known.pop(number, None) for number in call.writes]
            if all(gradient is None for gradient in ahead):
                own.maybe_clear_saved_tensors()
                continue
            _fill(ahead, blanks, graph.fixed)
            behind = graph.backward(own, ahead, direct and begun)
            begun = True  # the first has looked at what all have in common
            for number, gradient in zip(call.reads, behind, strict=True):
                if gradient is not None:
                    known[number] = known[number] + gradient if number in known else gradient
        count = len(ctx.needs_input_grad) - 1
        return None, *(known.get(number) for number in range(count))


def _fill(gradients: list[Any], blanks: Sequence[Blank], fixed: Sequence[bool]) -> None:
    """Put zeros where a result has no part in what is differentiated."""
    for position, gradient in enumerate(gradients):
        if gradient is None and not fixed[position]:
            size, dtype, device = blanks[position]
            gradients[position] = torch.zeros(size, dtype=dtype, device=device)


def joined(
    calls: Sequence[RegionCall], graphs: Sequence[PlainFunction | None], results: Sequence[int | None]
) -> Iterator[RegionCall]:
    """The calls, with one instead of several that follow each other and are known as graphs.

    Args:
        graphs: of each call; None: it is called as it is.
        results: the values that are returned.
    """
    pairs = list(zip(calls, graphs, strict=True))
    needed = {number for number in results if number is not None}
    made: list[RegionCall] = []
    for known, group in groupby(reversed(pairs), key=lambda pair: pair[1] is not None):
        mine = list(group)[::-1]
        made.extend(
            [_as_one(mine, needed)] if known and len(mine) >= _LEAST_CALLS else [c for c, _ in mine[::-1]]
        )
        needed.update(number for call, _ in mine for number in call.reads)
    yield from reversed(made)


def _as_one(pairs: Sequence[tuple[RegionCall, Any]], needed: set[int]) -> RegionCall:
    """Several calls as one, of whose values others need some."""
    written = [number for call, _ in pairs for number in call.writes]
    reads = tuple(dict.fromkeys(n for call, _ in pairs for n in call.reads if n not in set(written)))
    writes = tuple(number for number in written if number in needed)
    local = {number: slot for slot, number in enumerate((*reads, *written))}

    def renumbered(numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(local[number] for number in numbers)

    chain = _Chain(
        [
            (
                RegionCall(
                    call.run,
                    renumbered(call.reads),
                    renumbered(call.writes),
                    call.strides,
                    renumbered(call.frees),
                ),
                graph,
            )
            for call, graph in pairs
        ],
        renumbered(writes),
        len(local),
    )
    frees = tuple(n for call, _ in pairs for n in call.frees if n in reads or n in writes)
    return RegionCall(chain, reads, writes, (None,) * len(writes), frees)
