"""Operators that write to their arguments, such as those that users define: functionalisation leaves calls of
them on clones. Which memory they are given instead says `call_memory`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from polyfuse.base.errors import UnsupportedError
from polyfuse.frontend.shared_arguments import SHARED
from polyfuse.ir.nodes import View
from polyfuse.lowering.calls.call_memory import CallMemory
from polyfuse.lowering.calls.extern import call
from polyfuse.lowering.calls.fallback import name_in_calls
from polyfuse.lowering.calls.overwriting import FUNCTIONAL_CALLS
from polyfuse.lowering.context import LoweringContext, tensors_in
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.layout import storage_layout
from polyfuse.lowering.value import TensorValue
from polyfuse.torch_compat import ops


@lowers("higher_order.auto_functionalized", library=True)
def arguments_cloned(ctx: LoweringContext, node: Node, target: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The operator's results, then what it wrote, one for each argument that it may write to."""
    made = _Call(ctx, node, target)
    names = made.written
    values = [kwargs[name] for name in names]
    others = {name: value for name, value in kwargs.items() if name not in names}
    owned, same, memory = made.own(values, [node.kwargs[name] for name in names], others)
    return made.emit({**others, **same, **dict(zip(names, owned, strict=True))}, owned, memory)


@lowers("higher_order.auto_functionalized_v2", library=True)
def bases_cloned(
    ctx: LoweringContext, node: Node, target: Any, *, _all_bases: Sequence[Any], **kwargs: Any
) -> tuple[Any, ...]:
    """The operator's results, then the tensors whose parts it wrote."""
    if "_op_schema" in kwargs:
        raise UnsupportedError("what is called is no operator but another call of functions")
    made = _Call(ctx, node, target)
    others = {name: kwargs[name] for name in ops.argument_names(target) if name in kwargs}
    sources: Any = node.kwargs["_all_bases"]
    shared = made.shared(_all_bases)
    bases, same, memory = made.own(_all_bases, sources, others, shared)
    windows = {name: _window(bases[position], *part) for name, (position, *part) in shared.items()}
    arguments = {**others, **same, **windows}
    for name in made.written:
        if f"_{name}_length" not in kwargs:
            arguments[name] = _part(ctx, bases, f"_{name}", kwargs)
            continue
        length = kwargs[f"_{name}_length"]
        arguments[name] = (
            None if length is None else [_part(ctx, bases, f"_{name}_{i}", kwargs) for i in range(length)]
        )
    return made.emit(arguments, bases, memory)


@dataclass(frozen=True)
class _Call:
    """A call of `target`, at the traced `node`."""

    ctx: LoweringContext
    node: Node
    target: Any

    @property
    def written(self) -> tuple[str, ...]:
        """The arguments that it may write to."""
        names = ops.argument_names(self.target)
        return tuple(names[position] for position in ops.facts(self.target).mutates)

    @property
    def results(self) -> int:
        """How many results it has of its own."""
        return len(ops.result_names(self.target))

    @property
    def first(self) -> int:
        """Where the results begin that are arguments: without any of its own, there is a None."""
        return max(1, self.results)

    def shared(self, values: Sequence[TensorValue]) -> dict[str, tuple[int, Any, Any, Any]]:
        """The arguments that are windows on what it writes, whose values are `values`: the position there,
        sizes, strides and offset."""
        found = {}
        for name, (position, part, whole) in self.node.meta.get(SHARED, {}).items():
            window, base, value = self.ctx.template(part), self.ctx.template(whole), values[position]
            dense = storage_layout(value.size, value.stride, self.ctx.sizes) == value.stride
            if dense and value.stride == base.stride:
                found[name] = position, window.size, window.stride, window.offset - base.offset
        return found

    def own(
        self,
        values: Sequence[Any],
        sources: Sequence[Any],
        others: Mapping[str, Any],
        shared: Collection[str] = (),
    ) -> tuple[list[Any], dict[str, Any], CallMemory]:
        """Memory of the call's own for what it writes, whose traced nodes are `sources`; those `others`
        that are the same tensors, and so the same memory; and what was decided. Those of `shared` are
        not read where they stand."""
        known = [s for s in sources if isinstance(s, Node) and _is_one_tensor(s)]
        twins = {name: self.node.kwargs[name] for name in others if self.node.kwargs[name] in known}
        others_read = tensors_in(
            tuple(v for name, v in others.items() if name not in twins and name not in shared)
        )
        reads = [value.view.buffer for value in others_read if value.view is not None]
        memory = CallMemory(self.ctx, self.node, may_be_fresh=not self.results, reads=reads)
        owned = []
        for number, (value, source) in enumerate(zip(values, sources, strict=True)):
            key = self.first + number
            owned.append(_each(value, source, self.node.meta["val"][key], memory, key))
        return owned, {name: owned[sources.index(source)] for name, source in twins.items()}, memory

    def emit(self, arguments: Mapping[str, Any], owned: Sequence[Any], memory: CallMemory) -> tuple[Any, ...]:
        """The call, and its results with what it wrote behind them."""
        fakes = tuple(self.node.meta["val"][: self.first])
        given = [a for a in ops.arguments(self.target) if a.name in arguments]
        found = call(
            self.ctx,
            fakes if self.results > 1 else fakes[0] if self.results else None,
            name_in_calls(self.ctx, self.target),
            tuple(arguments[a.name] for a in given if not a.keyword_only),
            {a.name: arguments[a.name] for a in given if a.keyword_only},
            ordered=True,
            mutates=[v for v in tensors_in(tuple(owned)) if v.view and v.view.buffer in memory.written],
            fresh=tuple(memory.fresh),
        )
        return (*(found if self.results > 1 else (found,)), *owned)


def _is_one_tensor(node: Node) -> bool:
    """Whether two arguments with this node were one tensor in the user's program too. Others may have become
    one since, because they are computed in the same way."""
    picked = node.args[0] if node.op == "call_function" and node.args else None
    return node.op == "placeholder" or (
        isinstance(picked, Node)
        and picked.op == "call_function"
        and ops.op_name(picked.target) in FUNCTIONAL_CALLS
    )


def _each(value: Any, source: Any, fake: Any, memory: CallMemory, key: int) -> Any:
    """Memory of the call's own for a tensor, or for each of a list. `key` is the position among the
    results."""
    if isinstance(value, TensorValue):
        return memory.own(source, value, fake, key)
    if isinstance(value, (list, tuple)):
        # which of a list is asked for is said by another node: nobody can be followed through it
        return [_each(v, s, f, memory, -1) for v, s, f in zip(value, source, fake, strict=True)]
    return value


def _part(ctx: LoweringContext, bases: Sequence[Any], prefix: str, kwargs: Mapping[str, Any]) -> Any:
    """What an argument is of its base: all of it, a slice, or any window on its storage."""
    number = kwargs[f"{prefix}_base_index"]
    if number is None:
        return None
    base: TensorValue = bases[number]
    whole = base.view
    assert whole is not None
    if f"{prefix}_slice_dim" in kwargs:
        dim, start, end = (kwargs[f"{prefix}_slice_{part}"] for part in ("dim", "start", "end"))
        size = (*base.size[:dim], end - start, *base.size[dim + 1 :])
        return _window(base, size, base.stride, start * base.stride[dim])
    if f"{prefix}_storage_offset" in kwargs:
        if storage_layout(whole.size, whole.stride, ctx.sizes) != whole.stride:
            raise UnsupportedError("no call writes a window on the storage of a tensor with gaps")
        size, stride = (tuple(kwargs[f"{prefix}_{part}"]) for part in ("size", "stride"))
        return _window(base, size, stride, kwargs[f"{prefix}_storage_offset"] - base.offset)
    return base


def _window(base: TensorValue, size: tuple[Any, ...], stride: tuple[Any, ...], offset: Any) -> TensorValue:
    """Some elements of `base`, from its element number `offset` on."""
    assert base.view is not None
    part = TensorValue(base.dtype, base.torch_dtype, base.device, size, stride, base.offset + offset)
    part.set_view(View(base.view.buffer, size, stride, base.view.offset + offset))
    return part
