"""score_mod and mask_mod of flexible attention as Triton text inside its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyfuse.flex.problem import GRADIENT, SCORE, Added, Problem, score_axes, statements
from polyfuse.ir.expr import Expr
from polyfuse.ir.kernel import Kernel, KernelArg, Section
from polyfuse.ir.statements import Load, Statement, indices
from polyfuse.ir.types import DType
from polyfuse.kit import KernelFacts, Writer
from polyfuse.symbolic import IndexLike, free_axes, is_less, python_text
from polyfuse_triton.loops.indexing import Variable
from polyfuse_triton.loops.memory import MemoryScope
from polyfuse_triton.loops.scope import Value
from polyfuse_triton.tiling.plan import Dim, Plan

_SCORE_LOADS = tuple(Load(name, name, 0, DType.f32) for name in (SCORE, GRADIENT))
"""What defines the names that the kernel's own values take."""


class _Coordinates:
    """Where the functions are computed: a tile of queries by keys of one batch and head."""

    def __init__(self, problem: Problem, blocks: Mapping[str, int]) -> None:
        sizes = {"m": problem.queries, "n": problem.keys}
        self._masks = {
            name: f"{name}m"
            for name, size in sizes.items()
            if not (isinstance(size, int) and size % blocks[name] == 0)
        }
        self._variables = {name: Variable(name) for name in "bh"}
        for name, block in blocks.items():
            wide = not is_less(sizes[name], (1 << 31) - block)
            self._variables[name] = Variable(name, frozenset(name), f"{name}0", f"{name}l", block, wide)

    def variable(self, name: str) -> Variable:
        """What an axis is in the text."""
        return self._variables[name]

    def mask(self, dims: Iterable[str]) -> tuple[str, ...]:
        """Names of the masks that keep a tile inside some dimensions."""
        chosen = set(dims)
        return tuple(text for name, text in self._masks.items() if name in chosen)

    def extent(self, size: IndexLike) -> str:
        """A size as text."""
        return python_text(size)


class Scores:
    """Writes the functions; a new one for each loop, because a loop's values are not known outside it.

    `blocks` are the tile's queries `m` and keys `n`, rows first.
    """

    def __init__(
        self,
        problem: Problem,
        blocks: Mapping[str, int],
        out: Writer,
        arguments: dict[str, str],
        prefix: str,
    ) -> None:
        self._problem = problem
        self._statements, self._names = statements(problem.expressions)
        kernel = Kernel(
            name="flex",
            device="cuda",
            axes=score_axes((problem.batch, problem.heads, problem.queries, problem.keys)),
            raxes=(),
            args=(
                *(KernelArg(a.name, "in", a.dtype) for a in problem.captured),
                *(KernelArg(stmt.buffer, "in", stmt.dtype) for stmt in _SCORE_LOADS),
            ),
            row_buffers=(),
            sections=(Section(False, (*_SCORE_LOADS, *self._statements)),),
            numerics="fast" if problem.is_fast else "eager",
        )
        tiles = tuple(
            Dim(name, (name,), {"m": problem.queries, "n": problem.keys}[name], block)
            for name, block in blocks.items()
        )
        plan = Plan(tiles, None, ("b", "h"), (), False, 4, 1)
        self._order = tuple(blocks)
        self.coordinates = _Coordinates(problem, blocks)
        self._out, self._arguments = out, arguments
        self._scope = MemoryScope(
            kernel, KernelFacts.of(kernel), plan, self.coordinates, out, arguments, prefix
        )
        # weights are rounded to 16 bits for the next matmul
        self._scope.halves = problem.is_fast and problem.dtype.itemsize == 2

    def before(self, *varying: str) -> None:
        """Write what does not change in a loop, which changes the axes `varying` and all scores."""
        changing = {SCORE, GRADIENT}
        for stmt in self._statements:
            if changing.intersection(stmt.args) or _axes_of(stmt) & set(varying):
                changing.update(stmt.targets)
            else:
                self._scope.values[stmt.targets[0]] = self._scope.evaluate(stmt)

    def given(self, name: str, text: str) -> None:
        """Say what stands for `SCORE` or `GRADIENT` from now on."""
        self._scope.values[name] = Value(text, DType.f32, frozenset("mn"))

    def value(self, expr: Expr) -> str:
        """The text of an expression, over the whole tile."""
        found = self._scope.value(self._names[expr])
        return self._scope.spread(self._scope.typed(found), found.dims, frozenset("mn"))

    def add(self, item: Added, keep: str) -> None:
        """Add to the gradient of a captured tensor: what goes to one element is summed up first.

        Args:
            keep: what of the tile counts; empty for all.
        """
        scope, out = self._scope, self._out
        index = [scope.value(self._names[e]) for e in item.index]
        inside = scope.value(self._names[item.inside])
        dims = inside.dims.union(*(i.dims for i in index))
        value = self.value(item.value)
        text = f"tl.where({keep}, {value}, 0.0)" if keep else value
        for axis_number, name in enumerate(self._order):
            if name not in dims:
                text = f"tl.sum({text}, {axis_number}, keep_dims=True)"
        terms = [
            f"{scope.typed(i)} * {python_text(step)}"
            for i, step in zip(index, item.array.stride, strict=True)
        ]
        offset = " + ".join(terms) if terms else "0"
        sides = ", ".join(f"{n.upper()}BLOCK" if n in dims else "1" for n in self._order)
        shape = f"tl.zeros([{sides}], tl.int64)"
        masks = [scope.typed(inside), *self.coordinates.mask(dims)]
        target = f"{self._arguments[item.array.name]} + ({shape} + {offset})"
        out.line(f'tl.atomic_add({target}, {text}, mask={" & ".join(masks)}, sem="relaxed")')


def _axes_of(stmt: Statement) -> set[str]:
    return {name for index in indices(stmt) for name in free_axes(index)}
