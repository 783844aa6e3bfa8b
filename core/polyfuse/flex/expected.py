"""What kernels of flexible attention have to give, in f64, and how far off a right kernel may be.

Scores, weights and their gradients are computed anew from the problem, some rows at a time. Errors are what
f32 may be off, passed on step by step: the functions of scores are evaluated with their operands moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from polyfuse.flex.bounded import F32, TINY, Sure, values_of
from polyfuse.flex.problem import GRADIENT, SCORE, Added, Blocks, Problem, statements
from polyfuse.ir.expr import Expr
from polyfuse.ir.interpreter.space import index_values
from polyfuse.ir.statements import Statement
from polyfuse.plugin import Expected
from polyfuse.symbolic import IndexLike, evaluate, free_symbols

_LOG2E: Final = math.log2(math.e)
_TF32: Final = 2.0**-9
"""Of a product whose operands were rounded for matrix instructions."""
_SCORES, _BUDGET, _ON_HOST = 1 << 22, 1 << 28, 1 << 25
"""Scores that are computed together, and at most on a device and on the host; others are not compared."""


@dataclass(frozen=True)
class FlexLaunch:
    """A kernel's problem, and its arguments.

    Attributes:
        problem: what is computed.
        lists: blocks of scores that count.
        by_keys: whether the lists are of blocks of queries for each block of keys.
        arrays, sizes: names of what it is called with, in order.
        given: names of queries, keys and values; for gradients of them, also of the output's gradient, the
            logarithms of sums, and what each query's gradients have in common.
        results: names of what it writes.
        totals: the name of what a kernel of gradients of keys adds those of queries to, not yet scaled, and
            where number `d` of query `m` of a head is in it.
    """

    problem: Problem
    lists: tuple[Blocks, ...]
    by_keys: bool
    arrays: tuple[str, ...]
    sizes: tuple[IndexLike, ...]
    given: tuple[str, ...]
    results: tuple[str, ...]
    totals: tuple[str, IndexLike] | None = None

    @property
    def captured(self) -> frozenset[int]:
        """The operands that are only the beginning of what a kernel may read."""
        names = {array.name for array in self.problem.captured}
        known = {*self.given, *self.results, *(self.totals or ())[:1]}
        return frozenset(k for k, name in enumerate(self.arrays) if name in names - known)


def expected_flex(launch: FlexLaunch, *operands: Any) -> Expected:
    """What a call has to give; to totals and to gradients of captured tensors it adds."""
    call = _Call(launch, operands)
    found = {name: _Result.of(call.tensors[name]) for name in launch.results}
    made = list(found.values())
    sums = [item.array.name for item in launch.problem.added] if launch.by_keys else []
    sums += [launch.totals[0]] if launch.totals is not None else []
    added = {name: _Added(call.tensors[name]) for name in sums}
    if launch.problem.gradient is None:
        _forward(call, made)
    elif launch.by_keys:
        _to_keys(call, made, added)
    else:
        _to_queries(call, made[0])
    found |= {name: total.result(call) for name, total in added.items()}
    at = {name: launch.arrays.index(name) for name in found}
    results = {at[name]: (one.values, one.errors) for name, one in found.items()}
    return Expected("", (), {}, results, frozenset(at[name] for name in sums), launch.captured)


@dataclass
class _Result:
    """What a call has to write: unknown until it is computed."""

    values: Tensor
    errors: Tensor

    @staticmethod
    def of(tensor: Tensor) -> _Result:
        """Nothing is known of a tensor's elements."""
        values = tensor.double().contiguous()
        return _Result(values, torch.full_like(values, torch.inf))


@dataclass
class _Call:
    """One launch."""

    launch: FlexLaunch
    operands: Sequence[Any]
    tensors: dict[str, Tensor] = field(init=False)
    numbers: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        arrays, sizes = self.launch.arrays, self.launch.sizes
        self.tensors = dict(zip(arrays, self.operands, strict=False))
        symbols = (next(iter(free_symbols(size))) for size in sizes)
        self.numbers = dict(zip(symbols, self.operands[len(arrays) :], strict=True))

    def number(self, size: IndexLike) -> int:
        """The value of a size."""
        return int(evaluate(size, self.numbers))

    @cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        """Batches, heads, queries and keys."""
        p = self.launch.problem
        return self.number(p.batch), self.number(p.heads), self.number(p.queries), self.number(p.keys)

    @cached_property
    def program(self) -> tuple[tuple[Statement, ...], dict[Expr, str]]:
        """The functions of scores as statements, and the names of their values."""
        return statements(self.launch.problem.expressions)

    @cached_property
    def eps(self) -> float:
        """What rounding a weight for a matmul may change of it."""
        dtype = self.launch.problem.dtype
        narrow = dtype.itemsize == 2
        return torch.finfo(dtype.torch).eps if narrow else self.product

    @cached_property
    def product(self) -> float:
        """What a product may be off because of its operands."""
        p = self.launch.problem
        return 0.0 if p.exact or p.dtype.itemsize == 2 else _TF32

    def of_keys(self, batch: int, head: int) -> tuple[int, int]:
        """The batch and head of keys of those of queries."""
        p, (batches, heads, _, _) = self.launch.problem, self.sizes
        return batch // (batches // self.number(p.key_batch)), head // (heads // self.number(p.key_heads))

    def parts(self) -> Iterator[tuple[int, int, slice]]:
        """Batches, heads and some rows (of queries, or of keys and for all that share them): all of them, or
        as many from everywhere as are compared.
        """
        p, (batches, heads, queries, keys) = self.launch.problem, self.sizes
        rows, others = queries, keys
        if self.launch.by_keys:
            batches, heads, rows, others = self.number(p.key_batch), self.number(p.key_heads), keys, queries
        if not batches * heads * rows:
            return
        step = min(rows, max(1, _SCORES // max(1, others)))
        count = -(-rows // step)
        total = batches * heads * count
        budget = _ON_HOST if self.operands[0].device.type == "cpu" else _BUDGET
        some = min(total, max(2, budget // max(1, step * others)))
        for number in dict.fromkeys(k * (total - 1) // max(1, some - 1) for k in range(some)):
            at, part = divmod(number, count)
            yield at // heads, at % heads, slice(part * step, min(rows, (part + 1) * step))

    @property
    def is_whole(self) -> bool:
        """Whether all scores are computed."""
        batches, heads, queries, keys = self.sizes
        budget = _ON_HOST if self.operands[0].device.type == "cpu" else _BUDGET
        return batches * heads * queries * keys <= budget

    def rows(self, name: str, batch: int, head: int, rows: slice) -> Tensor:
        """Some rows of one head in f64."""
        return self.tensors[name][batch, head, rows].double()

    def matmul(self, left: Tensor, right: Tensor) -> Sure:
        """Rows of two matrices, multiplied in f32."""
        size = left.abs() @ right.abs().mT
        error = size * ((left.shape[-1] + 8) * F32 + self.product) + TINY
        return Sure(left @ right.mT, error)

    def values(self, at: tuple[int, int, slice, slice], known: Mapping[str, Sure]) -> dict[str, Sure]:
        """The values of all statements that can be computed from what is known."""
        batch, head, queries, keys = at
        device = self.operands[0].device
        names = {
            **self.numbers,
            "b": torch.tensor(batch, device=device).reshape(1, 1),
            "h": torch.tensor(head, device=device).reshape(1, 1),
            "m": torch.arange(queries.start, queries.stop, device=device).reshape(-1, 1),
            "n": torch.arange(keys.start, keys.stop, device=device).reshape(1, -1),
        }
        p = self.launch.problem
        # as exact as 16 bits are, where results have no more
        approximation = 2.0**-9 if p.is_fast and p.dtype.itemsize == 2 else 2.0**-18
        return values_of(self.program[0], self.tensors, names, known, approximation)


class _Scores(NamedTuple):
    """Scores of some queries by some keys.

    Attributes:
        before: as multiplied.
        changed: as the score's function made them, minus infinity where they do not count.
        counts: which count.
        known: the values of all statements.
    """

    before: Sure
    changed: Sure
    counts: Tensor
    known: dict[str, Sure]


def _scores(call: _Call, at: tuple[int, int, slice, slice]) -> _Scores:
    batch, head, queries, keys = at
    problem, names = call.launch.problem, call.launch.given
    query = call.rows(names[0], batch, head, queries)
    key = call.rows(names[1], *call.of_keys(batch, head), keys)
    found = call.matmul(query, key)
    assert found.errors is not None
    scaled = found.values * problem.scale
    before = Sure(scaled, found.errors * abs(problem.scale) + 2 * F32 * scaled.abs())
    given = Sure(before.values.float(), before.errors)
    known = call.values(at, {SCORE: given})
    names_of = call.program[1]
    shape = before.values.shape
    changed = known[names_of[problem.score]]
    counts = _listed(call, at)
    if problem.mask is not None:
        partly, whole = counts
        counts_all = whole | (partly & known[names_of[problem.mask]].values)
    else:
        counts_all = counts[0] | counts[1]
    counts_all = counts_all.expand(shape)
    values = changed.values.double().expand(shape)
    if problem.score.op == "load":  # nothing changed it
        values = before.values
    errors = torch.zeros_like(values) if changed.errors is None else changed.errors.expand(shape)
    errors = errors + 2 * F32 * values.abs().nan_to_num(0.0, 0.0, 0.0)
    values = values.masked_fill(~counts_all, -torch.inf)
    return _Scores(before, Sure(values, errors.masked_fill(~counts_all, 0.0)), counts_all, known)


def _listed(call: _Call, at: tuple[int, int, slice, slice]) -> tuple[Tensor, Tensor]:
    """Which scores lie in blocks that are partly masked, and which in whole ones."""
    batch, head, queries, keys = at
    problem, launch = call.launch.problem, call.launch
    device = call.operands[0].device
    batch = 0 if call.number(problem.mask_batch) == 1 else batch
    head = 0 if call.number(problem.mask_heads) == 1 else head
    row = torch.arange(queries.start, queries.stop, device=device) // problem.query_block
    column = torch.arange(keys.start, keys.stop, device=device) // problem.key_block
    found = []
    for wanted in (False, True):
        inside = torch.zeros(len(row), len(column), dtype=torch.bool, device=device)
        for item in launch.lists:
            if item.whole is not wanted:
                continue
            count = call.tensors[item.count.name][batch, head]
            index = call.tensors[item.index.name][batch, head]
            room = torch.arange(index.shape[-1], device=device) < count.unsqueeze(-1)
            most = 1 + max(int(row.max()), int(column.max()), int(index.max()))
            table = torch.zeros(index.shape[0], most, device=device)
            table.scatter_add_(1, index.long(), room.float())
            listed = table > 0
            inside |= listed[column][:, row].mT if launch.by_keys else listed[row][:, column]
        found.append(inside)
    return found[0], found[1]


def _forward(call: _Call, made: Sequence[_Result]) -> None:
    """The output, logarithms of sums, and greatest scores."""
    out, *rest = made
    problem, keys = call.launch.problem, slice(0, call.sizes[3])
    eps = torch.finfo(problem.dtype.torch).eps
    for batch, head, queries in call.parts():
        found = _scores(call, (batch, head, queries, keys))
        value = call.rows(call.launch.given[2], *call.of_keys(batch, head), keys)
        score, off = found.changed
        assert off is not None
        at = batch, head, queries
        if not keys.stop:
            continue
        nothing = (score == -torch.inf).all(-1)
        weights = score.softmax(-1).masked_fill(nothing.unsqueeze(1), 0.0)
        result = weights @ value
        most = off.amax(-1, keepdim=True)
        rounded = call.eps + call.product + (keys.stop + 16) * F32 / 4 + 2.0**-18
        relative = (off + most).clamp(max=50.0).expm1() + rounded
        total = (weights * relative).sum(-1, keepdim=True)
        error = (weights * relative + TINY) @ value.abs() + (total + eps) * result.abs() + TINY
        unknown = ~(total.squeeze(-1) <= 0.25) | score.isnan().any(-1) | (score == torch.inf).any(-1)
        out.values[at] = result
        out.errors[at] = error.masked_fill(unknown.unsqueeze(1), torch.inf).nan_to_num(torch.inf)
        size = (score.logsumexp(-1) * _LOG2E, score.amax(-1) * _LOG2E)
        for one, values, more in zip(rest, size, (total.squeeze(-1), 0.0), strict=False):
            bound = (most.squeeze(-1) + more) * 2 + 16 * F32 * (values.abs() + 1)
            one.values[at] = values
            one.errors[at] = torch.where(nothing, 0.0, bound).masked_fill(unknown, torch.inf)


class _Gradients(NamedTuple):
    """Of some scores: their weights, and the gradients of them before they were changed."""

    weights: Sure
    gradients: Sure
    scores: _Scores
    known: dict[str, Sure]


def _gradients(call: _Call, at: tuple[int, int, slice, slice]) -> _Gradients:
    batch, head, queries, keys = at
    problem, names = call.launch.problem, call.launch.given
    assert problem.gradient is not None
    found = _scores(call, at)
    grad = call.rows(names[3], batch, head, queries)
    value = call.rows(names[2], *call.of_keys(batch, head), keys)
    base = call.tensors[names[4]][batch, head, queries].double().unsqueeze(1)
    base = base.masked_fill(base == -torch.inf, 0.0)
    common = call.tensors[names[5]][batch, head, queries].double().unsqueeze(1)
    score, off = found.changed
    assert off is not None
    weights = (score * _LOG2E - base).exp2()
    relative = (off + 4 * F32 * (base.abs() + score.abs().nan_to_num(0.0, 0.0, 0.0)) + 2.0**-18).clamp(
        max=50.0
    )
    sure = Sure(weights, weights * relative.expm1() + TINY)
    product = call.matmul(grad, value)
    assert product.errors is not None and sure.errors is not None
    apart = product.values - common
    near = product.errors + 2 * F32 * (product.values.abs() + common.abs())
    given = weights * apart
    wrong = sure.errors * (apart.abs() + near) + weights * near + 2 * F32 * given.abs()
    known = {**found.known, GRADIENT: Sure(given.float(), wrong)}
    known = call.values(at, known)
    made = known[call.program[1][problem.gradient]]
    values = made.values.double().expand(given.shape)
    errors = torch.zeros_like(given) if made.errors is None else made.errors.expand(given.shape)
    values, errors = (one.masked_fill(~found.counts, 0.0) for one in (values, errors))
    return _Gradients(sure, Sure(values, errors), found, known)


def _summed(call: _Call, factors: Sure, rows: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Rows times factors that are rounded for it, added up in f32.

    Args:
        factors: (results, rows)
        rows: (rows, width)
    """
    assert factors.errors is not None
    size = factors.values.abs()
    off = factors.errors + size * (call.eps + call.product + (rows.shape[0] + 16) * F32)
    return factors.values @ rows * scale, (off + TINY) @ rows.abs() * abs(scale)


def _to_queries(call: _Call, made: _Result) -> None:
    """The gradient of queries."""
    problem, keys = call.launch.problem, slice(0, call.sizes[3])
    eps = torch.finfo(problem.dtype.torch).eps
    for batch, head, queries in call.parts():
        found = _gradients(call, (batch, head, queries, keys))
        key = call.rows(call.launch.given[1], *call.of_keys(batch, head), keys)
        values, errors = _summed(call, found.gradients, key, problem.scale)
        made.values[batch, head, queries] = values
        made.errors[batch, head, queries] = (errors + eps * values.abs() + TINY).nan_to_num(torch.inf)


def _to_keys(call: _Call, made: Sequence[_Result], added: Mapping[str, _Added]) -> None:
    """The gradients of keys and values, of tensors that the score's function reads, and sums of those of
    queries.
    """
    problem, (batches, heads, count, _) = call.launch.problem, call.sizes
    eps = torch.finfo(problem.dtype.torch).eps
    queries = slice(0, count)
    for key_batch, key_head, keys in call.parts():
        sums = [torch.zeros((), dtype=torch.float64, device=call.operands[0].device) for _ in range(4)]
        for batch in range(batches):
            for head in range(heads):
                if call.of_keys(batch, head) != (key_batch, key_head):
                    continue
                found = _gradients(call, (batch, head, queries, keys))
                pairs = ((found.gradients, 0, problem.scale), (found.weights, 3, 1.0))
                for k, (factors, of, scale) in enumerate(pairs):
                    assert factors.errors is not None
                    turned = Sure(factors.values.mT, factors.errors.mT)
                    rows = call.rows(call.launch.given[of], batch, head, queries)
                    values, errors = _summed(call, turned, rows, scale)
                    sums[2 * k] = sums[2 * k] + values
                    sums[2 * k + 1] = sums[2 * k + 1] + errors
                for item in problem.added:
                    added[item.array.name].add(call, item, found)
                if call.launch.totals is not None:
                    name, offset = call.launch.totals
                    key = call.rows(call.launch.given[1], key_batch, key_head, keys)
                    added[name].add_rows(
                        call, offset, (batch, head), *_summed(call, found.gradients, key, 1.0)
                    )
        at = key_batch, key_head, keys
        for k, one in enumerate(made):
            one.values[at] = sums[2 * k]
            bound = sums[2 * k + 1] * (1 + 2.0**-10) + eps * sums[2 * k].abs() + TINY
            one.errors[at] = bound.nan_to_num(torch.inf)


class _Added:
    """What is added to a tensor, in all."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        shape, device = tensor.shape, tensor.device
        self._values, self._sizes, self._errors = (
            torch.zeros(shape, dtype=torch.float64, device=device) for _ in range(3)
        )

    def add(self, call: _Call, item: Added, found: _Gradients) -> None:
        """Add what some scores give."""
        names, known, shape = call.program[1], found.known, found.scores.counts.shape
        value = known[names[item.value]]
        counts = found.scores.counts & known[names[item.inside]].values.expand(shape)
        index = tuple(known[names[e]].values.expand(shape)[counts] for e in item.index)
        values = value.values.double().expand(shape)[counts]
        errors = torch.zeros_like(values) if value.errors is None else value.errors.expand(shape)[counts]
        self._put(index or (torch.zeros_like(values, dtype=torch.int64),), values, errors)

    def add_rows(
        self, call: _Call, offset: IndexLike, head: tuple[int, int], values: Tensor, errors: Tensor
    ) -> None:
        """Add rows to those of one head."""
        rows, columns = (torch.arange(n, device=values.device) for n in values.shape)
        names = {**call.numbers, "m": rows.unsqueeze(1), "d": columns.unsqueeze(0)}
        at = torch.as_tensor(index_values(offset, names), device=values.device)
        self._put((*(torch.full_like(at, n) for n in head), at), values, errors)

    def _put(self, index: tuple[Tensor, ...], values: Tensor, errors: Tensor) -> None:
        for total, more in ((self._values, values), (self._sizes, values.abs()), (self._errors, errors)):
            (total if total.dim() else total.reshape(1)).index_put_(index, more, accumulate=True)

    def result(self, call: _Call) -> _Result:
        """What there is then, and how far it may be off, in whatever order it is added up."""
        before = self._tensor.double()
        errors = self._errors + 2.0**-14 * (self._sizes + before.abs()) + TINY
        if not call.is_whole:
            errors = torch.full_like(errors, torch.inf)
        return _Result(before + self._values, errors.nan_to_num(torch.inf))
