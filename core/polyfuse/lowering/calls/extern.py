"""Calls of eager operators: arguments to IR, results to buffers, effects in order, and
unbacked symbols."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.graph import views_in
from polyfuse.ir.nodes import Collective, ExternCall, Opaque, SymbolPath, TemplateCall
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.sizes import FAR_BELOW
from polyfuse.lowering.value import TensorValue
from polyfuse.symbolic import Index, host, symbol
from polyfuse.symbolic.convert import host_text
from polyfuse.torch_compat.tracing import shapes

CHECK = "aten._assert_scalar.default"
_QUANTISING = ("aten.quantize_per_tensor", "aten.quantize_per_channel")


def argument(ctx: LoweringContext, value: Any) -> Any:
    """An operator's argument as the IR writes it; tensors are stored with their traced strides first."""
    if isinstance(value, TensorValue):
        return ctx.realize_exact(value)
    if value is None or isinstance(value, (bool, int, float, str, Index, Opaque)):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(argument(ctx, item) for item in value)
    if shapes.is_symbolic(value):
        return ctx.sizes.number(value)
    if isinstance(value, torch.device):
        return Opaque(text=f"torch.device({str(value)!r})")
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return Opaque(text=str(value))
    if isinstance(value, complex):
        return Opaque(text=f"complex({_float_text(value.real)}, {_float_text(value.imag)})")
    return host_object(ctx, value)


def _float_text(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float('{value}')"


def host_object(ctx: LoweringContext, value: Any) -> Opaque:
    """`value` under a key of the object table; one key for each object."""
    for key, known in ctx.objects.items():
        if known is value:
            return Opaque(key=key)
    key = ctx.fresh("object")
    ctx.objects[key] = value
    return Opaque(key=key)


def call(
    ctx: LoweringContext,
    fake: Any,
    op: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    template: bool = False,
    fallback: bool = False,
    ordered: bool = False,
    mutates: Sequence[TensorValue] = (),
    aliases: bool = False,
    group: str = "",
    fresh: Sequence[str] = (),
    ends: Sequence[str] | None = None,
) -> Any:
    """Call operator `op`, whose results have the traced values `fake`; returns values of the same nesting.
    With a `group` of processes, the call starts communication in it. `fresh` are buffers among the arguments
    that hold nothing yet and that a call without results fills. With `ends`, results lie in memory
    that somebody else knows, and those buffers hold nothing any more, where earlier results lay.
    """
    lowered = tuple(argument(ctx, a) for a in args)
    named = tuple((k, argument(ctx, v)) for k, v in (kwargs or {}).items())
    written = tuple(dict.fromkeys(ctx.realize(v).buffer for v in mutates))
    for buffer in written:
        ctx.before_write(buffer)
    seen = tuple(dict.fromkeys(v.buffer for v in views_in((lowered, tuple(v for _, v in named)))))
    many = isinstance(fake, (tuple, list))
    results = [_result(ctx, f) for f in (fake if many else (fake,))]
    if op.startswith(_QUANTISING):
        _as_quantised(ctx, results, (*args, *(kwargs or {}).values()))
    made = tuple(r.view.buffer if isinstance(r, TensorValue) and r.view else "" for r in results)
    kind = TemplateCall if template else partial(Collective, group=group) if group else ExternCall
    fakes = fake if many else (fake,)
    symbols = _symbols(ctx, fakes)
    replaced, conditions = _replaced(ctx, fakes)
    node = kind(
        ctx.fresh("call"),
        op,
        lowered,
        named,
        tuple(fresh) or made,
        out="into" if fresh else "tuple" if many else "none" if fake is None else "single",
        mutates=(*written, *(ends or ())),
        aliases=seen if aliases else made if ends is not None else (),
        ordered=ordered,
        symbols=symbols + replaced,
        fallback=fallback,
        origins=ctx.origins,
    )
    ctx.emit(node)
    for condition, message in conditions:
        name = ctx.fresh("call")
        checked = (condition, message)
        ctx.emit(ExternCall(name, CHECK, checked, (), (), out="none", ordered=True, origins=ctx.origins))
    return tuple(results) if many else results[0]


def call_out(
    ctx: LoweringContext,
    fake: torch.Tensor,
    op: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    template: bool = True,
) -> TensorValue:
    """Call the ``out=`` form of an operator on a preallocated result, as a call that plugins may take
    over unless `template` is false."""
    lowered = tuple(argument(ctx, a) for a in args)
    named = tuple((k, argument(ctx, v)) for k, v in (kwargs or {}).items())
    value = ctx.stored(fake)
    assert value.view is not None
    kind = TemplateCall if template else ExternCall
    name = ctx.fresh("call")
    ctx.emit(kind(name, op, lowered, named, (value.view.buffer,), out="out", origins=ctx.origins))
    return value


def _result(ctx: LoweringContext, fake: Any) -> Any:
    if isinstance(fake, torch.Tensor):
        value = ctx.template(fake)
        kind = "temp" if len(value.stride) == value.rank else "object"
        buffer = ctx.add_buffer(value.dtype, value.torch_dtype, value.device, value.size, value.strides, kind)
        value.set_view(buffer.view())
        return value
    if isinstance(fake, (tuple, list)):
        raise UnsupportedError("an operator returns nested lists of tensors")
    return None if fake is None else ctx.sizes.number(fake) if _is_number(fake) else fake


def _as_quantised(ctx: LoweringContext, results: Sequence[Any], args: Sequence[Any]) -> None:
    """Set right the type of results that are traced with the type of what was quantised: their elements are
    smaller, and only eager operators know their scales."""
    dtype = next((a for a in args if isinstance(a, torch.dtype)), None)
    for value in results:
        if isinstance(value, TensorValue) and value.view is not None and dtype is not None:
            value.dtype, value.torch_dtype = None, dtype
            name = value.view.buffer
            text = str(dtype).removeprefix("torch.")
            ctx.buffers[name] = replace(ctx.buffers[name], dtype=None, torch_dtype=text)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or shapes.is_symbolic(value)


def _symbols(ctx: LoweringContext, fakes: Sequence[Any]) -> tuple[tuple[str, SymbolPath], ...]:
    """Unbacked symbols that first appear in these results, and where to read them."""
    found: dict[str, SymbolPath] = {}
    for value, path in _numbers(fakes):
        expr = value.node.expr
        for candidate in (expr, shapes.simplify(ctx.sizes.env, expr)):
            unbacked = shapes.unbacked_symbols(candidate)
            if len(unbacked) == 1 and str(unbacked[0]) not in ctx.bound_symbols:
                if candidate == unbacked[0] or path.kind == "item":
                    found.setdefault(str(unbacked[0]), path)
    ctx.bound_symbols.update(found)
    return tuple(found.items())


def _replaced(
    ctx: LoweringContext, fakes: Sequence[Any]
) -> tuple[tuple[tuple[str, SymbolPath], ...], tuple[tuple[Index, str], ...]]:
    """Unbacked symbols that first appear in these results and that a check in the program says equal
    something else, which was put in everywhere: where to read them, and conditions for each with a message.

    The program's own check, after which the two are one, is true wherever it stands.
    """
    found: dict[str, SymbolPath] = {}
    conditions: list[tuple[Index, str]] = []
    for value, path in _numbers(fakes):
        pair = shapes.replaced_by(ctx.sizes.env, value)
        if pair is None or str(pair[0]) in ctx.bound_symbols:
            continue
        known = shapes.free_symbols(pair[1])
        if any(shapes.is_unbacked(s) and str(s) not in ctx.bound_symbols for s in known):
            continue
        expr = shapes.equality(*pair)
        name = str(pair[0])
        found[name] = path
        ctx.bound_symbols.add(name)
        ctx.sizes.hints[name] = ctx.sizes.hint(ctx.sizes.index(value))
        symbols = (symbol(name, FAR_BELOW), *(ctx.sizes.index(s) for s in known))
        condition = host(host_text(expr), symbols, 0, 1)
        assert isinstance(condition, Index)
        conditions.append((condition, f"Runtime assertion failed for expression {expr}"))
    return tuple(found.items()), tuple(conditions)


def _numbers(fakes: Sequence[Any]) -> Iterator[tuple[Any, SymbolPath]]:
    """Symbolic numbers among results and in the layouts of results, and where to read each."""
    for k, fake in enumerate(fakes):
        if isinstance(fake, torch.Tensor):
            if type(fake).__name__ in ("FakeTensor", "Tensor", "Parameter") and fake.layout is torch.strided:
                for kind, numbers in (("size", fake.shape), ("stride", fake.stride())):
                    found = (n for n in enumerate(numbers) if shapes.is_symbolic(n[1]))
                    yield from ((n, SymbolPath(kind, k, d)) for d, n in found)
        elif shapes.is_symbolic(fake):
            yield fake, SymbolPath("item", k)
