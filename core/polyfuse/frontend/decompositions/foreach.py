"""Decompositions of the `_foreach_*` family: the same work, a tensor at a time, so that it fuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import torch

from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import decomp

_SAME_NAME: Final = tuple(
    word
    for line in (
        "abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min clone cos cosh div erf",
        "erfc exp expm1 floor frac  lerp lgamma log log10 log1p log2 maximum minimum mm mul neg pow",
        "reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan  tanh trunc",
    )
    for word in line.split()
)


def _largest(x: torch.Tensor) -> torch.Tensor:
    return torch.amax(x)


def _norm(x: torch.Tensor, ord: Any = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.linalg.vector_norm(x, ord, dtype=dtype)


def _copied(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return torch.ops.aten.copy.default(x, source, non_blocking)


def _at_most(x: torch.Tensor, bound: Any) -> torch.Tensor:
    return torch.minimum(x, bound) if isinstance(bound, torch.Tensor) else torch.clamp_max(x, bound)


def _at_least(x: torch.Tensor, bound: Any) -> torch.Tensor:
    return torch.maximum(x, bound) if isinstance(bound, torch.Tensor) else torch.clamp_min(x, bound)


_OWN: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "max": _largest,
    "norm": _norm,
    "copy": _copied,
    "zero": torch.zeros_like,
    "minimum": _at_most,
    "clamp_max": _at_most,
    "maximum": _at_least,
    "clamp_min": _at_least,
}


def _each(one: Callable[..., torch.Tensor], op: ops.OpOverload) -> Callable[..., Any]:
    arguments = ops.arguments(op)
    names = [a.name for a in arguments]
    listed = {a.name for a in arguments if a.is_list}
    leading = next(i for i, a in enumerate(arguments) if a.is_list)
    keyword_only = {a.name for a in arguments if a.keyword_only}
    is_product = ops.base_name(op) in ("_foreach_addcdiv", "_foreach_addcmul")
    scalars_in_tensor = is_product and ops.overload_name(op) == "Tensor"
    if is_product:
        keyword_only.add("value")

    def run(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        given = dict(zip(names, args, strict=False)) | kwargs
        count = len(given[names[leading]])
        results = []
        for i in range(count):
            chosen = {k: v[i] if k in listed else v for k, v in given.items()}
            if scalars_in_tensor:
                product = one(torch.zeros_like(chosen["self"]), chosen["tensor1"], chosen["tensor2"])
                results.append(chosen["self"] + given["scalars"][i] * product)
                continue
            if "value" in keyword_only and "scalars" in chosen:
                chosen["value"] = chosen.pop("scalars")
            # Only keyword-only arguments keep their name: positional ones are called differently by tensor
            # ops.
            positional = [v for k, v in chosen.items() if k not in keyword_only]
            results.append(one(*positional, **{k: v for k, v in chosen.items() if k in keyword_only}))
        return results

    return run


@lru_cache(maxsize=1)
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Every functional `_foreach_*` overload this torch has and its decomposition."""
    table: dict[Any, Callable[..., Any]] = {}
    for name in (*_SAME_NAME, *_OWN):
        one = _OWN.get(name) or getattr(torch, name)
        for op in decomp.expand_packets([f"_foreach_{name}"]):
            if not ops.is_mutable(op):
                table[op] = _each(one, op)
    return table
