"""Matmuls in chunks that run while chunks of their operand arrive, or chunks of their result leave.

The rows of an operand that is gathered are cut, and each chunk is multiplied as soon as it is here. Columns
of a result that is summed over ranks are cut, and each chunk leaves while the next one is multiplied. No sum
is cut, so that each number is computed from the same ones as before.

    wait(all_gather(x)) @ w                reduce_scatter(x @ w)
    -> cat(wait(all_gather(chunk)) @ w)    -> cat(wait(reduce_scatter(x @ columns)))
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.frontend.graph import Note
from polyfuse.frontend.rewrites.chunk_gains import CHUNKS, Chunking, Work, best_chunking, numbers_of
from polyfuse.frontend.rewrites.tools import Rewriting, is_contiguous, tensor_value
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import shapes

aten = torch.ops.aten

CHUNK: Final = "chunk of a collective"
"""Key of a node's facts."""
_PREFIX: Final = "_c10d_functional."
_GATHER: Final = f"{_PREFIX}all_gather_into_tensor.default"
_SUMS: Final = (f"{_PREFIX}reduce_scatter_tensor.default", f"{_PREFIX}all_reduce.default")
_SPLITS: Final = (aten.split.Tensor, aten.split_with_sizes.default)
_VIEWS: Final = (aten.view.default, aten._unsafe_view.default)
_MATMULS: Final = {aten.mm.default: 0, aten.addmm.default: 1}
"""And the position of their first operand."""


def chunk_matmuls(state: Rewriting) -> int:
    """Cut matmuls behind all-gathers, and before sums over ranks, into chunks, where that gains."""
    if state.settings.chunk_collectives == "off" or state.stage == "joint":
        return 0
    count = 0
    for node in state.nodes():
        name = ops.op_name(node.target)
        found = gathered_matmuls(node) if name == _GATHER else summed_matmul(node) if name in _SUMS else None
        chunking = None if found is None else best_chunking(found.work(), state.settings, found.possible())
        if found is not None and chunking is not None and state.spend():
            state.notes.append(_note(found, chunking))
            found.cut(state, chunking.chunks)
            count += 1
    return count


def _note(found: GatheredMatmuls | SummedMatmul, chunking: Chunking) -> Note:
    before, after = chunking.usual * 1e6, chunking.exposed * 1e6
    reason = (
        f"in {chunking.chunks} chunks; exposed communication by estimates: {before:.0f} us whole,"
        f" {after:.0f} us so"
    )
    return Note("chunk", found.start.name, "+".join(node.name for node in found.matmuls), reason)


def _value(node: Any) -> torch.Tensor:
    value = tensor_value(node)
    assert value is not None
    return value


def _only_wait(start: Node) -> Node | None:
    """The one reader of a collective, which waits for it."""
    users = list(start.users)
    if len(users) != 1 or users[0].op != "call_function":
        return None
    return users[0] if ops.op_name(users[0].target) == ops.WAIT_TENSOR else None


def _is_call(node: Any, *targets: Any) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and node.target in targets


def _keeps_columns(node: Node, columns: int) -> bool:
    """Whether a view leaves the last dimension as it is."""
    value = tensor_value(node)
    last = value.shape[-1] if value is not None and value.dim() else None
    return isinstance(last, int) and last == columns


def _joined(node: Node) -> tuple[Node, Node, list[Node]] | None:
    """The `split` and the parts that a `cat` joins along another dimension, all of them, in their order."""
    if not _is_call(node, aten.cat.default) or not isinstance(node.args[0], (tuple, list)):
        return None
    parts = list(node.args[0])
    if not all(_is_call(part, operator.getitem) for part in parts):
        return None
    splits = {part.args[0] for part in parts}
    split = parts[0].args[0]
    whole = len(splits) == 1 and _is_call(split, *_SPLITS)
    if not whole or [part.args[1] for part in parts] != list(range(len(split.meta["val"]))):
        return None
    return split, node, parts


def _dimension(node: Node, position: int) -> int:
    """The dimension argument of an operator, from the front."""
    given = node.args[position] if len(node.args) > position else node.kwargs.get("dim", 0)
    first = node.args[0][0] if isinstance(node.args[0], (tuple, list)) else node.args[0]
    return int(given) % _value(first).dim()


@dataclass
class GatheredMatmuls:
    """An all-gather, and the matmuls whose first operand is what it brings.

    Attributes:
        start, wait: the collective.
        rows: what it brings as a matrix.
        matmuls: that read it, in their order.
        others: what else reads any of it.
        dim: the dimension of the collective's operand that is cut: the first, or, where the parts of ranks
            are joined along the second one, that.
    """

    start: Node
    wait: Node
    rows: Node
    matmuls: list[Node]
    others: list[Node]
    dim: int
    _waits: list[Node] = field(default_factory=list)

    def possible(self) -> tuple[int, ...]:
        size = _value(self.start.args[0]).shape[self.dim]
        if isinstance(size, int):
            return tuple(chunks for chunks in CHUNKS if size % chunks == 0)
        least, _ = shapes.value_range(size.node.shape_env, size)
        # no chunk may be empty
        return tuple(chunks for chunks in CHUNKS if least is not None and least >= chunks)

    def work(self) -> Work:
        given, made, rows = (_value(node) for node in (self.start.args[0], self.start, self.rows))
        number = numbers_of([given])
        results = [_value(node) for node in self.matmuls]
        elements = [number(value.numel()) for value in results]
        size = made.element_size()
        copied = sum(2.0 * size * count for count in elements)
        copied += 2.0 * size * number(made.numel()) if self.others else 0.0
        return Work(
            ops.op_name(self.start.target),
            str(self.start.args[2]),
            made.device,
            size * number(made.numel()),
            sum(2.0 * count * int(rows.shape[1]) for count in elements),
            copied,
        )

    def cut(self, state: Rewriting, chunks: int) -> None:
        """Put the chunks in place of all of it."""
        start = self.start
        x, ranks, group = start.args
        gathered = []
        for first, last in _bounds(state, start, x, self.dim, chunks):
            part = state.call_before(start, aten.slice.Tensor, (x, self.dim, first, last))
            if not is_contiguous(_value(part)):
                form = {"memory_format": torch.contiguous_format}
                part = state.call_before(start, aten.clone.default, (part,), form)
            gathered.append(_chunk(state, start, (part, ranks, group)))
        waits: list[Node | None] = [None] * chunks

        def arrived(number: int, before: Node) -> Node:
            found = waits[number]
            if found is None:
                found = state.call_before(before, self.wait.target, (gathered[number],))
                waits[number] = found
            return found

        positions = {node: number for number, node in enumerate(state.graph.nodes)}
        first_other = sorted(self.others, key=lambda node: positions[node])[:1]
        path = [self.rows, *_between(self.rows, self.wait)] if self.rows is not self.wait else []
        for node in sorted([*self.matmuls, *first_other], key=lambda node: positions[node]):
            if node in self.matmuls:
                made = [self._matmul(state, node, arrived(i, node)) for i in range(chunks)]
                state.replace(node, self._rejoined(state, node, made))
            else:
                whole = self._whole(state, node, [arrived(i, node) for i in range(chunks)])
                for moved in reversed(path):
                    node.prepend(moved)
                self.wait.replace_all_uses_with(whole)
        _erase(state, [*path, self.wait, start])

    def _matmul(self, state: Rewriting, matmul: Node, part: Node) -> Node:
        """A matmul for a part of its rows."""
        depth = _value(self.rows).shape[1]
        matrix = (
            part
            if _value(part).dim() == 2
            else state.call_before(matmul, aten.view.default, (part, [-1, depth]))
        )
        operand = _MATMULS[matmul.target]
        args = (*matmul.args[:operand], matrix, *matmul.args[operand + 1 :])
        return state.call_before(matmul, matmul.target, args, dict(matmul.kwargs))

    def _rejoined(self, state: Rewriting, matmul: Node, made: Sequence[Node]) -> Node:
        """The rows of all chunks in their order."""
        call = state.call_before
        ranks, columns = self.start.args[1], _value(matmul).shape[1]
        if not self.dim:
            blocks = [call(matmul, aten.view.default, (node, [ranks, -1, columns])) for node in made]
            joined = call(matmul, aten.cat.default, (blocks, 1))
        else:
            outer = _value(self.start.args[0]).shape[0]
            shape = [ranks, outer, -1, columns]
            blocks = [call(matmul, aten.view.default, (node, shape)) for node in made]
            joined = call(matmul, aten.cat.default, (blocks, 2))
            joined = call(matmul, aten.permute.default, (joined, [1, 0, 2, 3]))
            form = {"memory_format": torch.contiguous_format}
            joined = call(matmul, aten.clone.default, (joined,), form)
        return call(matmul, aten.view.default, (joined, [-1, columns]))

    def _whole(self, state: Rewriting, before: Node, parts: Sequence[Node]) -> Node:
        """What the collective would have brought whole."""
        call = state.call_before
        if self.dim:
            return call(before, aten.cat.default, (list(parts), 1))
        inner = list(_value(self.start.args[0]).shape[1:])
        shape = [self.start.args[1], -1, *inner]
        blocks = [call(before, aten.view.default, (part, shape)) for part in parts]
        return call(before, aten.view.default, (call(before, aten.cat.default, (blocks, 1)), [-1, *inner]))


def gathered_matmuls(start: Node) -> GatheredMatmuls | None:
    """The matmuls behind an all-gather, if they can be cut."""
    wait = _only_wait(start)
    given, made = tensor_value(start.args[0]), tensor_value(start)
    if wait is None or given is None or made is None or start.kwargs or given.dim() < 2:
        return None
    if not is_contiguous(given) or not all(isinstance(size, int) for size in given.shape[2:]):
        return None
    cursor, dim, others = wait, 0, list[Node]()
    split = next(iter(wait.users), None)
    if split is not None and len(wait.users) == 1 and _is_call(split, *_SPLITS):
        joining = [user for part in split.users for user in part.users]
        found = _joined(joining[0]) if joining and len(set(joining)) == 1 else None
        if found is None or len(found[2]) != start.args[1] or _dimension(split, 2) != 0:
            return None
        equal = all(_value(part).shape[0] == given.shape[0] for part in found[2])
        if (
            not equal
            or _dimension(found[1], 1) != 1
            or given.dim() != 3
            or not isinstance(given.shape[0], int)
        ):
            return None
        cursor, dim = joining[0], 1
    elif not all(isinstance(size, int) for size in given.shape[1:]):
        return None
    if made.dim() == 2:
        rows: Node | None = cursor
    else:
        views = [user for user in cursor.users if _is_call(user, *_VIEWS) and _value(user).dim() == 2]
        rows = next((view for view in views if _keeps_columns(view, int(given.shape[-1]))), None)
        others += [user for user in cursor.users if user is not rows]
    if rows is None or not _keeps_columns(rows, int(given.shape[-1])):
        return None
    matmuls = [user for user in rows.users if _multiplies_rows(user, rows)]
    others += [user for user in rows.users if user not in matmuls]
    if not matmuls:
        return None
    return GatheredMatmuls(start, wait, rows, matmuls, others, dim)


def _multiplies_rows(node: Node, rows: Node) -> bool:
    if not _is_call(node, *_MATMULS):
        return False
    operand = _MATMULS[node.target]
    columns = _value(node).shape[1]
    bias = [_value(item) for item in node.args[:operand]]
    return (
        node.args[operand] is rows
        and rows not in (*node.args[:operand], *node.args[operand + 1 :])
        and isinstance(columns, int)
        and all(value.dim() == 1 for value in bias)
    )


@dataclass
class SummedMatmul:
    """A sum over ranks, scattered or not, and the matmul whose result it reads.

    Attributes:
        start, wait: the collective.
        matmul: before it.
        path: what is between them, in its order: views, and a new order of blocks of rows.
    """

    start: Node
    wait: Node
    matmul: Node
    path: list[Node]

    @property
    def matmuls(self) -> list[Node]:
        return [self.matmul]

    def possible(self) -> tuple[int, ...]:
        columns = int(_value(self.matmul).shape[1])
        return tuple(chunks for chunks in CHUNKS if columns % chunks == 0)

    def work(self) -> Work:
        made, result = _value(self.matmul), _value(self.start)
        number = numbers_of([made])
        size, operand = made.element_size(), _MATMULS[self.matmul.target]
        depth = number(_value(self.matmul.args[operand]).shape[1])
        return Work(
            ops.op_name(self.start.target),
            str(self.start.args[-1]),
            made.device,
            size * number(made.numel()),
            2.0 * number(made.numel()) * depth,
            2.0 * size * number(result.numel()),
        )

    def cut(self, state: Rewriting, chunks: int) -> None:
        """Put the chunks in place of all of it."""
        start, matmul, first = self.start, self.matmul, _MATMULS[self.matmul.target]
        width = int(_value(matmul).shape[1]) // chunks
        leaving = []
        for number in range(chunks):
            span = (number * width, (number + 1) * width)
            bias = [state.call_before(start, aten.slice.Tensor, (b, 0, *span)) for b in matmul.args[:first]]
            columns = state.call_before(start, aten.slice.Tensor, (matmul.args[first + 1], 1, *span))
            args = (*bias, matmul.args[first], columns)
            made = {matmul: state.call_before(start, matmul.target, args, dict(matmul.kwargs))}
            for node in self.path:
                made[node] = self._repeated(state, node, made, width)
            operand = made[start.args[0]]
            leaving.append(_chunk(state, start, (operand, *start.args[1:])))
        parts = [state.call_before(self.wait, self.wait.target, (node,)) for node in leaving]
        last = _value(parts[0]).dim() - 1
        state.replace(self.wait, state.call_before(self.wait, aten.cat.default, (parts, last)))
        _erase(state, [start, *reversed(self.path), matmul])

    def _repeated(self, state: Rewriting, node: Node, made: dict[Node, Node], width: int) -> Node:
        """What is done with all columns, done with some."""
        args = torch.fx.map_arg(node.args, lambda item: made.get(item, item))
        if node.target in _VIEWS:
            args = (args[0], [*args[1][:-1], width])
            return state.call_before(self.start, aten.view.default, args)
        return state.call_before(self.start, node.target, args, dict(node.kwargs))


def summed_matmul(start: Node) -> SummedMatmul | None:
    """The matmul before a sum over ranks, if it can be cut."""
    wait = _only_wait(start)
    made = tensor_value(start)
    if wait is None or made is None or start.kwargs or not is_contiguous(made) or not made.dim():
        return None
    columns = made.shape[-1]
    if start.args[1] not in ("sum", "avg") or not isinstance(columns, int):
        return None
    path: list[Node] = []
    cursor = start.args[0]
    while not _is_call(cursor, *_MATMULS):
        steps = _step_back(cursor, columns)
        if steps is None:
            return None
        path += steps
        cursor = steps[-1].args[0]
    assert isinstance(cursor, Node)
    inside = {start, *path}
    if any(user not in inside for node in (cursor, *path) for user in node.users):
        return None
    operand = _MATMULS[cursor.target]
    if not _keeps_columns(cursor, columns) or any(_value(b).dim() != 1 for b in cursor.args[:operand]):
        return None
    return SummedMatmul(start, wait, cursor, path[::-1])


def _step_back(node: Any, columns: int) -> list[Node] | None:
    """The last operators before a collective that treat all columns alike, the latest first."""
    if _is_call(node, *_VIEWS, aten.clone.default) and _keeps_columns(node, columns):
        return [node] if _keeps_columns(node.args[0], columns) else None
    found = _joined(node) if isinstance(node, Node) else None
    if found is None:
        return None
    split, joined, parts = found
    last = _value(joined).dim() - 1
    if last in (_dimension(joined, 1), _dimension(split, 2)) or not _keeps_columns(joined, columns):
        return None
    return [joined, *reversed(parts), split]


def _chunk(state: Rewriting, start: Node, args: tuple[Any, ...]) -> Node:
    """A part of a collective, which is not joined with others again."""
    made = state.call_before(start, start.target, args)
    made.meta[CHUNK] = True
    return made


def _bounds(state: Rewriting, before: Node, x: Any, dim: int, chunks: int) -> Iterator[tuple[Any, Any]]:
    """Where each chunk of a dimension begins and ends."""
    size = _value(x).shape[dim]
    if isinstance(size, int):
        yield from ((i * (size // chunks), (i + 1) * (size // chunks)) for i in range(chunks))
        return
    whole = state.call_before(before, aten.sym_size.int, (x, dim))
    each = state.call_before(before, operator.floordiv, (whole, chunks))
    bounds: list[Any] = [0, each]
    bounds += [state.call_before(before, operator.mul, (each, i)) for i in range(2, chunks)]
    yield from zip(bounds, [*bounds[1:], whole], strict=True)


def _between(node: Node, first: Node) -> list[Node]:
    """What leads from one node to another that it is made of, the latest first."""
    found: dict[Node, None] = {}
    open_ones = list(node.all_input_nodes) if node is not first else []
    while open_ones:
        item = open_ones.pop(0)
        if item is not first and item not in found:
            found[item] = None
            open_ones += item.all_input_nodes
    return list(found)


def _erase(state: Rewriting, nodes: Sequence[Node]) -> None:
    """Drop those that nobody reads any more; the latest first."""
    erased: set[Node] = set()
    for node in nodes:
        if node not in erased and not node.users:
            erased.add(node)
            state.graph.erase_node(node)
