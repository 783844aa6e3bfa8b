"""Fallback to the eager operator: always possible, so that no graph fails for want of a lowering."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import warn_once
from polyfuse.base.text import short_source
from polyfuse.ir.nodes import OBJECT_CALL
from polyfuse.ir.types import from_torch
from polyfuse.lowering.calls.extern import call, host_object
from polyfuse.lowering.context import LoweringContext, tensors_in
from polyfuse.lowering.report import Fallback
from polyfuse.lowering.value import TensorValue
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fx

ACCEPT = "name it in `force_fallback` to accept that, or unset strict"
"""What `strict` advises where an operator would fall back to eager."""


@dataclass(frozen=True)
class Rebuilt:
    """Calls `target` with nested arguments rebuilt from a flat list: for operators that take dictionaries or
    return lists within lists.

    `args` and `kwargs` have the original nesting, with `Slot` objects for the flat arguments.
    With `kinds`, the results come as one flat tuple, in the types that were traced: when they run, some
    operators find others than they promised.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    kinds: tuple[torch.dtype | None, ...] | None = None

    def __call__(self, *flat: Any) -> Any:
        found = self.target(*_fill(self.args, flat), **_fill(self.kwargs, flat))
        if self.kinds is None:
            return found
        pairs = zip(_flat(found), self.kinds, strict=True)
        return tuple(value if kind is None or value is None else value.to(kind) for value, kind in pairs)


@dataclass(frozen=True)
class Slot:
    """Stands for flat argument number `position`."""

    position: int


def _fill(nested: Any, flat: Sequence[Any]) -> Any:
    if isinstance(nested, Slot):
        return flat[nested.position]
    if isinstance(nested, Mapping):
        return {k: _fill(v, flat) for k, v in nested.items()}
    if isinstance(nested, (tuple, list)):
        return type(nested)(_fill(v, flat) for v in nested)
    return nested


def _slots(nested: Any, flat: list[Any]) -> Any:
    if isinstance(nested, TensorValue):
        flat.append(nested)
        return Slot(len(flat) - 1)
    if isinstance(nested, Mapping):
        return {k: _slots(v, flat) for k, v in nested.items()}
    if isinstance(nested, (tuple, list)):
        return (
            tuple(_slots(v, flat) for v in nested)
            if isinstance(nested, tuple)
            else [_slots(v, flat) for v in nested]
        )
    if nested is None or isinstance(nested, (bool, int, float, str, torch.dtype, torch.device)):
        return nested
    flat.append(nested)
    return Slot(len(flat) - 1)


def _flat(nested: Any) -> Iterator[Any]:
    """What lists within lists hold, in order."""
    if isinstance(nested, (tuple, list)):
        for item in nested:
            yield from _flat(item)
    else:
        yield nested


def _nested_like(model: Any, flat: Iterator[Any]) -> Any:
    """Values of a flat list with the nesting of `model`."""
    if isinstance(model, (tuple, list)):
        return tuple(_nested_like(item, flat) for item in model)
    return next(flat)


def _has_mapping(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, (tuple, list)) and any(_has_mapping(v) for v in value)


def run_eagerly(
    ctx: LoweringContext,
    node: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    reason: str,
    accepted: bool = False,
) -> Any:
    """Call the traced operator itself; `reason` says why, for the report.

    Raises:
        UnsupportedError: with the option `strict`, unless the operator is `accepted`: eager by design.
    """
    name = ops.op_name(node.target)
    if ctx.settings.strict and not accepted:
        source = f" ({short_source(fx.source_text(node))})" if fx.source_text(node) else ""
        raise UnsupportedError(
            f"{name}{source} would fall back to eager: {reason}",
            ACCEPT,
        )
    _note_small_floats(name, args, node.meta.get("val"), reason)
    ctx.report.fallbacks.append(Fallback(node.name, ops.op_name(node.target), reason))
    return call_operator(ctx, node.target, node.meta.get("val"), args, kwargs, fallback=True)


def is_eager_by_design(target: Any) -> bool:
    """Whether an operator that has no lowering is not expected to have one: what draws random numbers, looks
    at memory in another way, is there for its effect, or is not one of torch's own.
    """
    facts = ops.facts(target)
    foreign = not facts.name.startswith(("aten.", "prims.")) and not facts.is_higher_order
    return foreign or facts.is_random or facts.is_view or facts.effects


def _note_small_floats(name: str, args: tuple[Any, ...], fake: Any, reason: str) -> None:
    """Say, once, that an operator on a floating-point type of a byte falls back to eager: few expect it."""
    results = fake if isinstance(fake, (tuple, list)) else (fake,)
    dtypes = [value.torch_dtype for value in tensors_in(args)]
    dtypes += [value.dtype for value in results if isinstance(value, torch.Tensor)]
    for dtype in dict.fromkeys(d for d in dtypes if d.itemsize == 1 and d.is_floating_point):
        if from_torch(dtype) is None:
            text = f"{name} on {str(dtype).removeprefix('torch.')} falls back to eager: {reason}"
            warn_once("lowering", text)


def call_operator(
    ctx: LoweringContext,
    target: Any,
    fake: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    fallback: bool,
) -> Any:
    """Call any operator, by its name where it has one, with its effects tracked in order."""
    facts = ops.facts(target)
    name = ops.op_name(target)
    mutated = _mutated(target, facts, args, kwargs)
    ordered = facts.is_random or facts.effects or facts.is_higher_order
    many = isinstance(fake, (tuple, list))
    nests = many and any(isinstance(item, (tuple, list)) for item in fake)
    if nests or not _by_name(target, name) or _has_mapping((args, tuple(kwargs.values()))):
        flat: list[Any] = []
        kinds = tuple(getattr(item, "dtype", None) for item in _flat(fake))
        rebuilt = Rebuilt(target, _slots(args, flat), _slots(kwargs, flat), kinds if many else None)
        name = OBJECT_CALL + host_object(ctx, rebuilt).key
        args, kwargs = tuple(flat), {}
    found = call(
        ctx,
        tuple(_flat(fake)) if nests else fake,
        name,
        args,
        kwargs,
        fallback=fallback,
        ordered=ordered,
        mutates=mutated,
        aliases=facts.is_view or ops.communicates(ops.op_name(target)),
    )
    return _nested_like(fake, iter(found)) if nests else found


def _by_name(target: Any, name: str) -> bool:
    try:
        return ops.resolve(name) is target
    except LookupError:
        return False


def name_in_calls(ctx: LoweringContext, target: Any) -> str:
    """What an extern call of `target` names: the operator, or an object where no name leads to it."""
    name = ops.op_name(target)
    return name if _by_name(target, name) else OBJECT_CALL + host_object(ctx, target).key


def _mutated(
    target: Any, facts: ops.OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[TensorValue, ...]:
    if not facts.mutates:
        return ()
    names = ops.argument_names(target)
    found: list[TensorValue] = []
    for position in facts.mutates:
        value = args[position] if position < len(args) else kwargs.get(names[position])
        found.extend(tensors_in(value))
    return tuple(found)
