"""Errors of the size of roundings, put into a run in float64 where a compiled program may round.

They stand after each statement and inside it, after each ATen operator: `x - x.mean()` rounds the mean, whose
error is that of every element. Under autograd the operators of the backward, and the sums of gradients that
meet at a value, get theirs in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Inner", "Noise", "coarsest"]

_ADDS_UP = ("sum", "mean", "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "var", "std", "var_mean", "cumsum")
"""Operators whose error grows with the number of terms."""

_KEEPS = (
    "copy",
    "clone",
    "cat",
    "index",
    "gather",
    "where",
    "fill",
    "zeros",
    "empty",
    "full",
    "arange",
    "flip",
)
"""Parts of the names of operators that move elements: they round nothing."""


class Noise:
    """Random errors, the same for the same seed.

    Args:
        types: of all named values in eager mode.
    """

    def __init__(self, seed: int, types: Mapping[str, torch.dtype]) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.types = types

    def factor(self, value: Tensor, size: float) -> Tensor:
        """Numbers around one, of the shape of a value."""
        drawn = torch.rand(value.shape, generator=self.generator, dtype=torch.float64)
        return 1 + (2 * drawn - 1) * size

    def rounding(self, name: str) -> float:
        """The relative error of one rounding of a value; functions in float32 err by some more."""
        return _rounding(self.types[name])


class Inner(TorchDispatchMode):
    """Errors after each operator that runs meanwhile.

    Args:
        dtype: in which the operators compute in eager mode, or more precisely.
    """

    def __init__(self, noise: Noise, dtype: torch.dtype) -> None:
        super().__init__()
        self._noise, self._size = noise, _rounding(dtype)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__.partition(".")[0]
        if name == "native_layer_norm":
            with self:
                return _layer_norm(*args)
        found = func(*args, **(kwargs or {}))
        if any(r.alias_info is not None for r in func._schema.returns) or any(k in name for k in _KEEPS):
            return found
        size = self._size
        if name in _ADDS_UP:
            size *= _growth(args, found)
        if isinstance(found, Tensor):
            return self._rounded(found, size)
        if isinstance(found, (tuple, list)):
            return type(found)(self._rounded(f, size) if isinstance(f, Tensor) else f for f in found)
        return found

    def _rounded(self, value: Tensor, size: float) -> Tensor:
        if not value.dtype.is_floating_point:
            return value
        return value * self._noise.factor(value, size)


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer norm in operators. Of a row of equal elements the rounding of its mean is all that is left, and
    that times `1 / sqrt(eps)` is the result; eager's kernel as one operator would get no such error.
    """
    dims = tuple(range(x.ndim - len(shape), x.ndim))
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    scale = torch.rsqrt(centred.square().mean(dims, keepdim=True) + eps)
    result = centred * scale
    if weight is not None:
        result = result * weight
    if bias is not None:
        result = result + bias
    return result, mean, scale


def coarsest(run: Callable[[], None]) -> torch.dtype:
    """The coarsest type in which operators compute while something runs in eager mode: 16-bit values are
    computed with in float32.
    """
    seen = _Types()
    with seen:
        run()
    wide = [t for t in seen.found if t.is_floating_point]
    return torch.float64 if wide and all(t == torch.float64 for t in wide) else torch.float32


class _Types(TorchDispatchMode):
    """Notes the types of what operators read and make."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in (*args, *(made if isinstance(made, (tuple, list)) else (made,))):
            self.found.update(
                v.dtype
                for v in (each if isinstance(each, (tuple, list)) else (each,))
                if isinstance(v, Tensor)
            )
        return made


def _rounding(dtype: torch.dtype) -> float:
    if not dtype.is_floating_point:
        return 0.0
    return torch.finfo(dtype).eps * (2.0 if dtype.itemsize > 2 else 0.5)


def _growth(args: tuple[Any, ...], found: Any) -> float:
    """How much a sum may err by more than a single rounding: terms of one sign err as a random walk does."""
    made = found[0] if isinstance(found, (tuple, list)) else found
    most = max((a.numel() for a in args if isinstance(a, Tensor)), default=0)
    terms = most / max(1, made.numel())
    if isinstance(args[0], Tensor) and args[0].ndim and made.numel() >= args[0].numel():
        terms = float(args[0].shape[-1])
    return max(1.0, float(terms**0.5) / 8)
