"""How often a loop computes a value again that it broadcasts."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from polyfuse.torch_compat.tracing import shapes

_MANY = 8
"""Times that a value is read across its memory from which storing it pays: such reads take as long as those
at positions from data, which are what is spared.
"""


def recomputed_points(value: torch.Tensor, results: object, shape_env: Any) -> int:
    """Points at which loops over `results`, traced tensors, compute `value` again, a traced tensor that they
    broadcast. Innermost axes along which it is one number do not count: generated code computes it before the
    loop over them.
    """
    every = results if isinstance(results, (tuple, list)) else (results,)
    return max((_recomputed(value, r, shape_env) for r in every if isinstance(r, torch.Tensor)), default=0)


def broadcast_run(value: torch.Tensor, results: object, shape_env: Any) -> int:
    """How many neighbouring points of loops over `results`, at least, read one number of `value`; 1 where
    each reads another, or where that is not known.
    """
    every = results if isinstance(results, (tuple, list)) else (results,)
    return min((_run(value, r, shape_env) for r in every if isinstance(r, torch.Tensor)), default=1)


def reads_across(value: torch.Tensor, results: object, shape_env: Any) -> bool:
    """Whether neighbouring points of loops over `results` read `value`, which they broadcast many times, at
    elements that are not neighbours in its memory.
    """
    every = results if isinstance(results, (tuple, list)) else (results,)
    return any(_across(value, r, shape_env) for r in every if isinstance(r, torch.Tensor))


def _across(value: torch.Tensor, result: torch.Tensor, shape_env: Any) -> bool:
    sizes, varies, loops = _loops(value, result, shape_env)
    along = next((d for d in reversed(loops) if varies[d]), None)
    if along is None or value.stride(along - result.dim()) == 1:
        return False
    own = prod(sizes[d] for d in loops if varies[d])
    return _recomputed(value, result, shape_env) >= (_MANY - 1) * own


def _recomputed(value: torch.Tensor, result: torch.Tensor, shape_env: Any) -> int:
    sizes, varies, loops = _loops(value, result, shape_env)
    while loops and not varies[loops[-1]]:
        loops.pop()
    return prod(sizes[d] for d in loops) - prod(sizes[d] for d in loops if varies[d])


def _run(value: torch.Tensor, result: torch.Tensor, shape_env: Any) -> int:
    sizes, varies, loops = _loops(value, result, shape_env)
    run = 1
    while loops and not varies[loops[-1]]:
        run *= sizes[loops.pop()]
    return run


def _loops(
    value: torch.Tensor, result: torch.Tensor, shape_env: Any
) -> tuple[list[int], list[bool], list[int]]:
    """The sizes of a result, along which dimensions a value that it broadcasts varies, and the dimensions of
    the loops over it, outermost first: none where it is not broadcast.
    """
    lead = result.dim() - value.dim()
    if lead < 0 or value.layout is not torch.strided or result.layout is not torch.strided:
        return [], [], []
    sizes, strides = _hints(result.shape, shape_env), _hints(result.stride(), shape_env)
    own, steps = _hints(value.shape, shape_env), _hints(value.stride(), shape_env)
    if any(n not in (1, whole) for n, whole in zip(own, sizes[lead:], strict=True)):
        return [], [], []
    # what `expand` repeats has a stride of zero
    varies = [False] * lead + [n != 1 and step != 0 for n, step in zip(own, steps, strict=True)]
    loops = sorted((d for d, n in enumerate(sizes) if n != 1), key=lambda d: -strides[d])
    return sizes, varies, loops


def _hints(numbers: Sequence[Any], shape_env: Any) -> list[int]:
    return [n if type(n) is int else int(shapes.hint(shape_env, n)) for n in numbers]
