"""A call of flexible attention on its way into a graph: what is read of the operator's arguments, and under
which names kernels know it. Whoever brings kernels asks here for the problem, and emits calls of them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from polyfuse.base.errors import UnsupportedError
from polyfuse.flex.problem import AXES, GRADIENT, SCORE, Added, Array, Blocks, Problem
from polyfuse.ir.expr import Expr, apply, cast, const, index_value, load, loads
from polyfuse.ir.nodes import ExternCall, View
from polyfuse.ir.types import DType
from polyfuse.plugin import LoweringContext, Source, TensorValue, device_of
from polyfuse.symbolic import IndexLike, axis

KEY_LISTS, QUERY_LISTS = (2, 6), (6, 10)
"""Positions of the lists of key blocks, and of query blocks, in the tuple of a block mask."""
_TYPES = (DType.bf16, DType.f16, DType.f32)
_SHORTEST_BLOCK = 16
_LONGEST_DEPTH = 256

_FIRST = 5
"""Results before those for captured tensors: the score's, and those of its four indices, which have none."""


@dataclass(frozen=True)
class Written:
    """A kernel, and its arguments in order: names of arrays, then sizes."""

    source: Source
    arrays: tuple[str, ...]
    sizes: tuple[IndexLike, ...]


@dataclass(frozen=True)
class _Fixed:
    """Sizes that a kernel is written for."""

    depth: int
    values: int
    query_block: int
    key_block: int


def _fixed(node: Any) -> _Fixed:
    """These sizes of a call; where they were symbolic, what is compiled is for this value from now on."""

    def known(value: Any) -> int:
        return int(value.meta["val"] if isinstance(value, torch.fx.Node) else value)

    depth, values = (node.args[k].meta["val"].shape[3] for k in (0, 2))
    blocks = next(a for a in node.args if isinstance(a, (tuple, list)))
    return _Fixed(known(depth), known(values), known(blocks[-3]), known(blocks[-2]))


def is_read(node: Any, k: int) -> bool:
    """Whether anybody reads the k-th gradient of a captured tensor."""
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == 3:
            picked = [u for u in user.users if u.target is operator.getitem]
            return len(picked) != len(user.users) or any(u.args[1] == k and u.users for u in picked)
    return False


def _added(array: Array, index: Sequence[Expr], size: Sequence[IndexLike], value: Expr) -> Added:
    """An addition at an index that may be negative (counted from the end) or out of range (then skipped)."""
    zero = const(0, DType.i64)
    wrapped, inside = [], const(True, DType.bool)
    for i, extent in zip(index, size, strict=True):
        end = index_value(extent)
        i = apply("where", apply("lt", i, zero), apply("add", i, end), i)
        exists = apply("bitwise_and", apply("ge", i, zero), apply("lt", i, end))
        inside = apply("bitwise_and", inside, exists)
        wrapped.append(i)
    return Added(array, tuple(wrapped), inside, value)


class FlexCall:
    """One call on its way into the graph: what it reads, and under which names its kernels know that."""

    def __init__(
        self,
        ctx: LoweringContext,
        node: Any,
        query: TensorValue,
        key: TensorValue,
        value: TensorValue,
        block_mask: Sequence[Any],
        scale: float,
    ) -> None:
        if query.dtype not in _TYPES or not query.dtype is key.dtype is value.dtype:
            raise UnsupportedError(f"attention on {query.torch_dtype} and {key.torch_dtype} has no kernel")
        fixed = _fixed(node)
        self._ctx = ctx
        self._query, self._key, self._value = query, key, value
        self._blocks = tuple(block_mask)
        self._scale = scale
        self._stored: dict[str, View] = {}
        self._captured: dict[str, Array] = {}
        self._learned: dict[int, TensorValue] = {}
        self._fixed = fixed
        if max(fixed.depth, fixed.values) > _LONGEST_DEPTH:
            raise UnsupportedError("a query or value is too long for registers")
        if any(n % _SHORTEST_BLOCK for n in (fixed.query_block, fixed.key_block)):
            raise UnsupportedError("the blocks of the mask are too small")

    # --- operands --------------------------------------------------------------------------------------

    @property
    def operands(self) -> tuple[TensorValue, TensorValue, TensorValue]:
        """Queries, keys and values."""
        return self._query, self._key, self._value

    def array(self, value: TensorValue) -> Array:
        """A tensor that a kernel takes, stored."""
        view = self._ctx.realize(value)
        assert value.dtype is not None
        dtype = view.dtype or value.dtype
        # each way to look at a buffer is an argument of its own
        same = (name for name, known in self._stored.items() if known == view)
        name = next(same, f"p{len(self._stored)}")
        self._stored[name] = view
        return Array(name, dtype, view.stride)

    def lists(self, positions: tuple[int, int]) -> tuple[Blocks, ...]:
        """The lists of blocks that the mask holds: of those that are partly masked, and of whole ones.

        Raises:
            UnsupportedError: they have another form than torch gives them, or those of queries are missing.
        """
        found = []
        for position in range(*positions, 2):
            count, index = self._blocks[position : position + 2]
            if count is not None:
                if index is None or count.rank != 3 or index.rank != 4:
                    raise UnsupportedError("the lists of the block mask have another form than usual")
                found.append(Blocks(self.array(count), self.array(index), position > positions[0]))
        if not found:
            raise UnsupportedError("the block mask lacks its lists of queries")
        return tuple(found)

    def common(
        self, output: TensorValue, grad: TensorValue, grad_sums: TensorValue | None, sums: TensorValue
    ) -> TensorValue:
        """What the gradients of each query's scores have in common."""
        ctx = self._ctx
        result = ctx.temporary(DType.f32, sums.device, sums.size)

        def values(index: Sequence[IndexLike]) -> tuple[Expr, ...]:
            both = (cast(value.at(index), DType.f32) for value in (output, grad))
            return (apply("mul", *both),)

        total = ctx.temporary(DType.f32, sums.device, sums.size)
        (body,) = ctx.reduce("sum", grad.size, (3,), values, (total,))
        if grad_sums is None:
            return total
        share = cast(grad_sums.at(ctx.axes(result)), DType.f32)
        return ctx.lazy(result, apply("sub", body, apply("mul", share, const(1 / math.log(2), DType.f32))))

    # --- functions -------------------------------------------------------------------------------------

    def functions(
        self, score_mod: Any, score_captured: Sequence[Any], mask_captured: Sequence[Any]
    ) -> tuple[Expr, Expr | None]:
        """The changed score, and whether it counts (None: always)."""
        score = self._inlined(score_mod, [self._score(SCORE), *self._indices(), *score_captured])
        mask = self._inlined(self._blocks[-1], [*self._indices(), *mask_captured])
        counts = mask.at(())
        if counts.op == "const":
            return cast(score.at(()), DType.f32), None if counts.value else counts
        return cast(score.at(()), DType.f32), cast(counts, DType.bool)

    def gradients(
        self, joint: Any, captured: Sequence[Any], wanted: Mapping[int, torch.Tensor]
    ) -> tuple[Expr, tuple[Added, ...]]:
        """The gradient of the score before it was changed, and what is added to those of captured tensors.

        Raises:
            UnsupportedError: the score's function reads whole rows of a tensor with a gradient.
        """
        given = [self._score(SCORE), *self._indices(), self._score(GRADIENT), *captured]
        module, scatters = with_scatters(joint, sorted(wanted))
        found = list(self._ctx.inline(module, given))
        added = []
        for number, (k, count) in enumerate(scatters):
            fake = wanted[k]
            if count != fake.dim():
                raise UnsupportedError("the score's function reads whole rows of a tensor with a gradient")
            start = 1 + sum(c + 1 for _, c in scatters[:number])
            index = [cast(value.at(()), DType.i64) for value in found[start : start + count]]
            value = cast(found[start + count].at(()), DType.f32)
            if k not in self._learned:
                zeros = self._ctx.temporary(DType.f32, self._query.device, self._ctx.template(fake).size)
                self._learned[k] = self._ctx.lazy(zeros, const(0.0, DType.f32))
            array = self.array(self._learned[k])
            added.append(_added(array, index, self._learned[k].size, value))
        return cast(found[0].at(()), DType.f32), tuple(added)

    def learned(self, k: int, fake: torch.Tensor) -> TensorValue:
        """The gradient of a captured tensor, after the call that adds to it."""
        total = self._learned[k]
        return self._ctx.lazy(fake, total.at(self._ctx.axes(total)))

    def _inlined(self, module: Any, arguments: Sequence[Any]) -> TensorValue:
        found = self._ctx.inline(module, arguments)
        result: TensorValue = found[0] if isinstance(found, (tuple, list)) else found
        return result

    def _score(self, name: str) -> TensorValue:
        ctx = self._ctx
        return ctx.lazy(ctx.temporary(DType.f32, self._query.device, ()), load(name, 0, DType.f32))

    def _indices(self) -> list[TensorValue]:
        ctx, found = self._ctx, []
        for name, size in zip(AXES, (*self._query.size[:3], self._key.size[2]), strict=True):
            body = cast(index_value(axis(name, size)), DType.i32)
            found.append(ctx.lazy(ctx.temporary(DType.i32, self._query.device, ()), body))
        return found

    # --- the call --------------------------------------------------------------------------------------

    def problem(
        self, score: Expr, mask: Expr | None, gradient: Expr | None, added: tuple[Added, ...] = ()
    ) -> Problem:
        """The call as data."""
        more = (e for item in added for e in (*item.index, item.inside, item.value))
        expressions = [e for e in (score, mask, gradient, *more) if e is not None]
        for read in loads(*expressions):
            name = read.buffer
            if name not in (SCORE, GRADIENT) and name not in self._captured:
                self._captured[name] = Array(name, read.dtype, ())
        query, key = self._query, self._key
        lists = self._blocks[KEY_LISTS[0]]
        return Problem(
            batch=query.size[0],
            heads=query.size[1],
            queries=query.size[2],
            keys=key.size[2],
            key_batch=key.size[0],
            key_heads=key.size[1],
            depth=self._fixed.depth,
            values=self._fixed.values,
            mask_batch=lists.size[0],
            mask_heads=lists.size[1],
            query_block=self._fixed.query_block,
            key_block=self._fixed.key_block,
            dtype=query.dtype or DType.f32,
            scale=float(self._scale),
            exact=not device_of(query.device).rounds("matmuls"),
            is_fast=self._ctx.settings.numerics == "fast",
            score=score,
            mask=mask,
            gradient=gradient,
            captured=tuple(self._captured.values()),
            added=added,
        )

    def emit(
        self,
        kernel: object,
        written: Written,
        results: Sequence[TensorValue],
        added: Sequence[TensorValue] = (),
    ) -> None:
        """The call of a kernel in the graph.

        Args:
            kernel: what is called.
            written: it as text, and what it is called with.
            results: what it writes.
            added: what it adds to, besides gradients of captured tensors.
        """
        ctx = self._ctx
        views = [self._stored.get(a) or View(a, (1,), (1,)) for a in written.arrays]
        outputs = tuple(self._stored[self.array(value).name].buffer for value in results)
        learned = (ctx.realize(value) for value in (*self._learned.values(), *added))
        sums = tuple(view.buffer for view in learned if view in views)
        key = ctx.add_object(f"{written.source.name}_", kernel)
        ctx.emit(ExternCall(ctx.fresh("call"), key, (*views, *written.sizes), (), outputs, "into", sums))


def with_scatters(joint: Any, wanted: Sequence[int]) -> tuple[GraphModule, list[tuple[int, int]]]:
    """The function with other results: the score's gradient, and for each addition to the gradient of a
    `wanted` captured tensor the element's indices, then the value.

    Returns it with the captured tensor and the number of indices of each addition.

    Raises:
        UnsupportedError: `joint` is no traced function, or adds to whole rows.
    """
    if not isinstance(joint, GraphModule):
        raise UnsupportedError(f"a {type(joint).__name__} is no traced function")
    graph = Graph()
    copies: dict[Node, Any] = {}
    results: Sequence[Any] = ()
    for node in joint.graph.nodes:
        if node.op == "output":
            results = node.args[0]
        else:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    found: list[Any] = [copies[results[0]]]
    counts: list[tuple[int, int]] = []
    for k in wanted:
        for scatter in _scatters(results[_FIRST + k]):
            index = [copies[i] if isinstance(i, Node) else None for i in scatter.args[1]]
            if any(i is None or i.meta["val"].dim() for i in index):
                raise UnsupportedError("the score's function reads whole rows of a tensor with a gradient")
            found += [*index, copies[scatter.args[2]]]
            counts.append((k, len(index)))
    graph.output(found)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)
    return GraphModule(joint, graph), counts


def _scatters(node: Any) -> Iterator[Node]:
    """The additions that a gradient is the sum of."""
    if not isinstance(node, Node):
        return
    name = str(node.target)
    if name == "flex_lib.zeros_and_scatter.default":
        yield node
    elif node.target is torch.ops.aten.add.Tensor:
        for part in node.args:
            yield from _scatters(part)
    else:
        raise UnsupportedError(f"the gradient of a captured tensor is made by {name}")
