"""A matmul as the text of one Triton function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Cast, Constant, IndexValue, Load, Statement, Store, indices, with_index
from polyfuse.ir.types import DType
from polyfuse.kit import KernelFacts, Writer
from polyfuse.kit.contraction import Operand
from polyfuse.plugin import Source
from polyfuse.symbolic import IndexLike, axis, free_axes, substitute
from polyfuse_triton.build.meta import PRODUCT
from polyfuse_triton.dtypes import triton_type
from polyfuse_triton.loops.coordinates import renamed
from polyfuse_triton.loops.kernel import KernelText, parameter_names
from polyfuse_triton.loops.memory import MemoryScope
from polyfuse_triton.loops.scope import Value
from polyfuse_triton.matmul.coordinates import MatmulCoordinates, TileCoordinates
from polyfuse_triton.matmul.lines import FEWEST_WARPS, LINE, LineScope
from polyfuse_triton.matmul.narrow import (
    AHEAD,
    BOTH,
    GROUP,
    HALF,
    INSIDE,
    LONG_STEP,
    STEP,
    TURN,
    WORDS,
    Narrow,
    factored,
    stepped,
)
from polyfuse_triton.matmul.narrow_scope import GroupScope, NarrowScope
from polyfuse_triton.matmul.plan import Matmul, MatmulPlan
from polyfuse_triton.matmul.strides import SizeInStrides, sizes_in_strides
from polyfuse_triton.tiling.plan import Plan

_ACCURATE = 128
"""Matmuls of 8-bit numbers that Hopper may add up with few bits, as libraries have it."""


_ALIGNED, _UNALIGNED = f"aligned_{Source.SYMBOL}", f"unaligned_{Source.SYMBOL}"
_BESIDE = "beside"
"""The sum of a second matmul."""
_FEW_ROWS = 16
_LONGEST = 1 << 20
"""Longest rows whose steps, as many as a tile has, surely fit in 32 bits."""


def matmul_text(kernel: Kernel, found: Matmul, plan: MatmulPlan) -> KernelText:
    """The function of a matmul, named `Source.SYMBOL`."""
    writing = _Writing(kernel, found, plan)
    strides = sizes_in_strides(kernel)
    text = writing.function(Source.SYMBOL)
    if strides:
        slow = replace(plan, k=found.shortest_depth)
        rest = _Writing(kernel, found, slow).function(_UNALIGNED)
        text = writing.function(_ALIGNED) + rest + _two_ways(writing, strides, slow)
    names = tuple(writing.arguments.values())
    return KernelText(text, names, writing.constants, writing.coordinates.grid())


def _two_ways(writing: _Writing, strides: Mapping[str, SizeInStrides], slow: MatmulPlan) -> str:
    """The function that looks at its sizes: rows that begin at multiples of 16 elements are copied in wide
    chunks. Others take little at a time, because every element has an address of its own.
    """
    out, given = Writer(), writing.arguments
    conditions = [
        f"({given[name]} % {use.multiple} == 0) & ({given[name]} < {_LONGEST})"
        if use.multiple > 1
        else f"({given[name]} < {_LONGEST})"
        for name, use in strides.items()
    ]
    out.line("@triton.jit")
    out.line(writing.head(Source.SYMBOL))
    with out.indented():
        constants = [name for name, _ in writing.constants]
        aligned = dict(given)
        for name, use in strides.items():
            size = f"tl.cast({given[name]}, tl.int32)" if use.alone else given[name]
            aligned[name] = f"{size} // {use.multiple} * {use.multiple}" if use.multiple > 1 else size
        out.line(f"if {' & '.join(conditions)}:")
        with out.indented():
            out.line(f"{_ALIGNED}({', '.join([*aligned.values(), *constants])})")
        out.line("else:")
        with out.indented():
            constants = [str(slow.k) if name == "KBLOCK" else name for name in constants]
            out.line(f"{_UNALIGNED}({', '.join([*given.values(), *constants])})")
    return out.text()


class _OperandScope(MemoryScope):
    """Where an operand's tile is computed: what lies beyond the depth's end counts for nothing."""

    def elsewhere(self, dims: frozenset[str], dtype: DType) -> str:
        """Zero where a mask is false."""
        return ", other=0.0" if dtype.is_float else ", other=0"


class _Writing:
    def __init__(self, kernel: Kernel, found: Matmul, plan: MatmulPlan) -> None:
        self._kernel = kernel
        self._found = found
        self._plan = plan
        self.arguments = parameter_names(kernel)
        self.coordinates = MatmulCoordinates(found, plan, self.arguments)
        dims = ((dim.constant, dim.block) for dim in self.coordinates.dims.values())
        self.constants = (*dims, (PRODUCT, plan.group))
        self._out = Writer()
        # every tile has its axes under the same names
        everything = plan.plan(found, "m", "n", "k")
        self._uniform = KernelFacts.of(kernel).uniform
        before = kernel
        if found.narrow is not None:
            kernel = stepped(kernel, found.narrow, plan.k, self._turns(found.narrow))
        self._moved = renamed(kernel, everything, KernelFacts.of(kernel))
        self._facts = KernelFacts.of(self._moved)
        self._moved_statement = {
            id(old): new
            for own, after in zip(before.sections, self._moved.sections, strict=True)
            for old, new in zip(own.body, after.body, strict=True)
        }

    def head(self, name: str) -> str:
        """The line that begins a function with all parameters."""
        constants = (f"{constant}: tl.constexpr" for constant, _ in self.constants)
        return f"def {name}({', '.join([*self.arguments.values(), *constants])}):"

    def function(self, name: str) -> str:
        """The text of a function that computes the matmul."""
        out, found = Writer(), self._found.contraction
        self._out = out
        with out.indented(), out.detached() as lines:
            self._write_sum()
            scope = self._scope(MemoryScope, "mn", "c")
            scope.values[found.accumulator] = Value("acc", found.dtype, frozenset("mn"))
            if self._found.beside is not None:
                scope.values[self._found.beside.accumulator] = Value(_BESIDE, found.dtype, frozenset("mn"))
            for stmt in found.epilogue:
                moved = self._moved_statement[id(stmt)]
                if isinstance(moved, Store):
                    scope.store(moved, False)
                else:
                    scope.values[stmt.targets[0]] = scope.evaluate(moved)
        out.line("@triton.jit")
        out.line(self.head(name))
        with out.indented():
            for line in self.coordinates.lines(lines):
                out.line(line)
        out.add(lines)
        return out.text()

    def _write_sum(self) -> None:
        """The loop over the depth, which leaves the sum in `acc`."""
        narrow = self._found.narrow
        if narrow is not None:
            if narrow.transposed:
                self._write_transposed_sum(narrow)
            elif narrow.joined:
                self._write_joined_sum(narrow)
            else:
                self._write_narrow_sum(narrow)
            return
        out, found = self._out, self._found.contraction
        right, beside = self._scope(_OperandScope, "kn", "b"), self._found.beside
        lefts = [("acc", self._scope(_OperandScope, "mk", "a"), found.left)]
        if beside is not None:
            lefts.append((_BESIDE, self._scope(_OperandScope, "mk", "d"), beside.left))
        for scope, operand in (*((scope, operand) for _, scope, operand in lefts), (right, found.right)):
            for stmt in operand.body:
                if self._uniform(stmt.targets[0], self._found.depth):
                    scope.values[stmt.targets[0]] = scope.evaluate(self._moved_statement[id(stmt)])
        for total, *_ in lefts:
            out.line(f"{total} = tl.zeros([MBLOCK, NBLOCK], {triton_type(found.dtype)})")
        out.line(f"for k0 in range(0, {self.coordinates.extent(self.coordinates.dims['k'].extent)}, KBLOCK):")
        with out.indented():
            with out.detached() as body:
                tiles = [(total, self._operand(scope, operand, "mk")) for total, scope, operand in lefts]
                b = self._operand(right, found.right, "kn")
                for total, a in tiles:
                    out.line(f"{total} = tl.dot({a}, {b}, {total}{self._precision()})")
                self._end_round(*(total for total, _ in tiles))
            for line in self.coordinates.loop_lines(body):
                out.line(line)
            out.add(body)

    def _write_narrow_sum(self, narrow: Narrow) -> None:
        """The same where an operand is made of bytes: one matmul for each number in a byte."""
        out, found = self._out, self._found.contraction
        sides = ((found.left, "mk", "a"), (found.right, "kn", "b"))
        made, dims, letter = sides[0 if narrow.is_left else 1]
        _, other_dims, other_letter = sides[1 if narrow.is_left else 0]
        scope = NarrowScope(*self._scope_parts(dims, letter))
        scope.wanted = made.dtype
        moved = {stmt.targets[0]: self._moved_statement[id(stmt)] for stmt in made.body}
        inner = (narrow.depth[-1], narrow.half)
        along = (*self._found.depth, narrow.half)
        hoisted = [stmt for name, stmt in moved.items() if self._uniform(name, along)]
        scope.at(hoisted, {}, {})
        before = {stmt.targets[0]: scope.value(stmt.targets[0]) for stmt in hoisted}
        of_step = self._of_step(moved, before, inner)
        name, factors = made.value, tuple[str, ...]()
        if self._has_few_rows or self._plan.k * narrow.numbers >= LONG_STEP:
            name, factors = factored(made, lambda name: self._uniform(name, inner))
        kind, turns = triton_type(found.dtype), self._turns(narrow)
        rounds = narrow.bytes // (self._plan.k * turns)
        positions = [{TURN: turn} for turn in range(turns)]
        out.line(f"acc = tl.zeros([MBLOCK, NBLOCK], {kind})")
        first = self._first(narrow, self._plan.k * turns)
        held = [self._asked(scope, of_step, {**position, STEP: first}, before) for position in positions]
        for turn, values in enumerate(held):
            for number, value in enumerate(values):
                out.line(f"next{turn}_{number} = {value.text}")
        out.line(f"for {STEP} in range({self.coordinates.extent(first)}, {rounds}):")
        with out.indented(), out.detached() as lines:
            if of_step:
                out.line(f"{AHEAD} = tl.minimum({STEP} + 1, {rounds - 1})")
            known: list[dict[str, Value]] = []
            for turn, values in enumerate(held):
                known.append(dict(before))
                for number, (stmt, value) in enumerate(zip(of_step, values, strict=True)):
                    out.line(f"now{turn}_{number} = next{turn}_{number}")
                    known[-1][stmt.targets[0]] = replace(value, text=f"now{turn}_{number}")
            for turn, position in enumerate(positions):
                later: dict[str, IndexLike] = {**position, STEP: axis(AHEAD, rounds)}
                for number, value in enumerate(self._asked(scope, of_step, later, before)):
                    out.line(f"next{turn}_{number} = {value.text}")
            load = self._unmasked(narrow)
            for position, given in zip(positions, known, strict=True):
                total = "part" if factors else "acc"
                if factors:
                    out.line(f"part = tl.zeros([MBLOCK, NBLOCK], {kind})")
                beside = self._beside(load, other_dims, other_letter, narrow, position)
                for number, text in enumerate(beside):
                    scope.at(tuple(moved.values()), {**position, HALF: number}, given)
                    tile = self._narrow_tile(scope, name, made, dims)
                    pair = (tile, text) if narrow.is_left else (text, tile)
                    out.line(f"{total} = tl.dot({', '.join(pair)}, {total}{self._precision()})")
                if factors:
                    scales = " * ".join(scope.typed(scope.value(factor)) for factor in factors)
                    out.line(f"acc += part * ({scales})")
            self._end_round("acc")
        with out.indented():
            for line in self.coordinates.loop_lines(lines):
                out.line(line)
            out.add(lines)

    def _write_transposed_sum(self, narrow: Narrow) -> None:
        """The same of bytes that are only converted, by rows that are stored transposed: of these any order
        of the depth may be read, such as the one in which each thread has sixteen bytes of its own.
        """
        out, found = self._out, self._found.contraction
        scope = LineScope(*self._scope_parts("mk", "a"))
        rows = NarrowScope(*self._scope_parts("kn", "b"))
        load, read = self._unmasked(narrow), self._moved_statement[id(found.left.body[0])]
        out.line(f"acc = tl.zeros([MBLOCK, NBLOCK], {triton_type(found.dtype)})")
        first = self.coordinates.extent(self._first(narrow, self._plan.k))
        out.line(f"for {STEP} in range({first}, {narrow.bytes // self._plan.k}):")
        with out.indented(), out.detached() as lines:
            assert isinstance(read, Load)
            by_words = self._reads_lines and self._plan.k % WORDS == 0
            tile = scope.converted(read) if by_words else None
            address = rows.indexer().address(substitute(load.index, {INSIDE: 0}))
            at = rows.spread(address.of(self.arguments[load.buffer]), address.dims, frozenset("n"))
            ordered = f"transposed_rows({at}, KBLOCK, {narrow.transposed}, {tile is not None})"
            if tile is None:
                moved = tuple(self._moved_statement[id(stmt)] for stmt in found.left.body)
                scope.at(moved, {}, {})
                tile = self._narrow_tile(scope, found.left.value, found.left, "mk")
            out.line(f"acc = tl.dot({tile}, {ordered}, acc{self._precision()})")
            self._end_round("acc")
        with out.indented():
            for line in self.coordinates.loop_lines(lines):
                out.line(line)
            out.add(lines)

    def _write_joined_sum(self, narrow: Narrow) -> None:
        """The same where one matmul takes both numbers of each byte, in the order in which the other operand
        has them. What each group has for itself is read in the loop: an operand made of what a round hands to
        the next would pass through shared memory.
        """
        out, found = self._out, self._found.contraction
        moved = {stmt.targets[0]: self._moved_statement[id(stmt)] for stmt in found.left.body}
        scope = LineScope(*self._scope_parts("mk", "a"))
        scope.wanted = found.left.dtype
        along = (*self._found.depth, narrow.half)
        hoisted = [stmt for name, stmt in moved.items() if self._uniform(name, along)]
        scope.at(hoisted, {}, {})
        before = {stmt.targets[0]: scope.value(stmt.targets[0]) for stmt in hoisted}
        inner = (narrow.depth[-1], narrow.half)
        own = self._of_step(moved, before, inner)
        out.line(f"acc = tl.zeros([MBLOCK, NBLOCK], {triton_type(found.dtype)})")
        first = self.coordinates.extent(self._first(narrow, self._plan.k))
        out.line(f"for {STEP} in range({first}, {narrow.bytes // self._plan.k}):")
        with out.indented(), out.detached() as lines:
            columns = GroupScope(*self._scope_parts(f"m{GROUP}", "u"))
            columns.at(own, {}, before)
            groups: dict[str, tuple[Value, str]] = {}
            for stmt in own:
                value = columns.value(stmt.targets[0])
                text = columns.spread(columns.typed(value), value.dims, frozenset(f"m{GROUP}"))
                groups[stmt.targets[0]] = value, text
            row = NarrowScope(*self._scope_parts(f"n{BOTH}", "b"))
            of_both = axis(BOTH, 2 * self._plan.k)
            in_order = {INSIDE: of_both // 2, HALF: of_both % 2}
            load = with_index(self._unmasked(narrow), lambda index: substitute(index, in_order))
            beside = row.evaluate(load)
            tile = row.spread(beside.text, beside.dims, frozenset(f"n{BOTH}"))
            name = found.left.value
            both = scope.halves_of(name, moved, before, groups) if self._reads_lines else None
            if both is None:
                both = self._joined_halves(scope, moved, before, groups, narrow)
            out.line(f"acc = tl.dot({both}, tl.trans({tile}), acc{self._precision()})")
            self._end_round("acc")
        with out.indented():
            for line in self.coordinates.loop_lines(lines):
                out.line(line)
            out.add(lines)

    def _end_round(self, *totals: str) -> None:
        """Before operands in registers are made again, matmuls have to have read them (`multiplied`)."""
        if not self._found.makes_left or self._plan.warps < FEWEST_WARPS:
            return
        if self._found.contraction.dtype.itemsize == 4:
            for total in totals:
                self._out.line(f"{total} = multiplied({total})")

    def _joined_halves(
        self,
        scope: NarrowScope,
        moved: Mapping[str, Statement],
        before: Mapping[str, Value],
        groups: Mapping[str, tuple[Value, str]],
        narrow: Narrow,
    ) -> str:
        """The text of both numbers of each byte, each computed for itself."""
        given = dict(before)
        for name, (value, text) in groups.items():
            if narrow.groups(self._plan.k) > 1:
                value = scope.define(f"of_groups({text}, KBLOCK)", replace(value, dims=frozenset("mk")))
            given[name] = value
        made, halves = self._found.contraction.left, []
        for number in range(narrow.numbers):
            scope.at(tuple(moved.values()), {HALF: number}, given)
            halves.append(self._narrow_tile(scope, made.value, made, "mk"))
        return f"tl.reshape(tl.join({', '.join(halves)}), [MBLOCK, {BOTH.upper()}BLOCK])"

    def _of_step(
        self, moved: Mapping[str, Statement], before: Mapping[str, Value], inner: Sequence[str]
    ) -> list[Load]:
        """The loads of what a group has for itself."""
        return [
            stmt
            for name, stmt in moved.items()
            if isinstance(stmt, Load) and name not in before and self._uniform(name, inner)
        ]

    def _first(self, narrow: Narrow, length: int) -> IndexLike:
        """The first round, of so many bytes, that counts."""
        if narrow.skipped is None:
            return 0
        skipped = self._moved_statement[id(narrow.skipped)]
        assert isinstance(skipped, IndexValue)
        return skipped.index * narrow.inside // length

    def _unmasked(self, narrow: Narrow) -> Load:
        """What reads the other operand in rounds that count."""
        load = self._moved_statement[id(narrow.other)]
        assert isinstance(load, Load)
        return replace(load, mask=None, other=None)

    @property
    def _reads_lines(self) -> bool:
        """Whether threads read sixteen bytes of a line at a time."""
        made = self._found.contraction.left
        return self._plan.warps >= FEWEST_WARPS and made.dtype is DType.bf16 and self._plan.k % LINE == 0

    @property
    def _has_few_rows(self) -> bool:
        """Whether sums are so few that they may be scaled after short steps, too."""
        return min(self._plan.m, self._plan.n) <= _FEW_ROWS

    def _turns(self, narrow: Narrow) -> int:
        return narrow.turns(self._plan.k) if self._has_few_rows else 1

    def _asked(
        self,
        scope: NarrowScope,
        loads: Sequence[Statement],
        position: Mapping[str, IndexLike],
        before: Mapping[str, Value],
    ) -> list[Value]:
        """What a group has for itself, read a round before it is used: such loads pass no copy unit, whose
        answers the loop awaits.
        """
        scope.at(loads, position, before)
        return [scope.value(stmt.targets[0]) for stmt in loads]

    def _narrow_tile(self, scope: NarrowScope, name: str, made: Operand, dims: str) -> str:
        """The tile of what is multiplied, which is the operand or what is left of it without its factors."""
        value = scope.value(name)
        text = scope.spread(scope.typed(value), value.dims, frozenset(dims))
        return text if value.dtype is made.dtype else f"({text}).to({triton_type(made.dtype)})"

    def _beside(
        self, load: Statement, dims: str, letter: str, narrow: Narrow, position: Mapping[str, IndexLike]
    ) -> list[str]:
        """The texts of the other operand's tiles, one for each number in a byte."""
        if not narrow.together:
            scope = NarrowScope(*self._scope_parts(dims, letter))
            found = []
            for number in range(narrow.numbers):
                scope.at((load,), {**position, HALF: number}, {})
                value = scope.value(load.targets[0])
                found.append(scope.spread(scope.typed(value), value.dims, frozenset(dims)))
            return found
        # read side by side, as memory holds them, and taken apart in registers
        outer = dims.replace(INSIDE, "")
        scope = NarrowScope(*self._scope_parts(f"{outer}{BOTH}", letter))
        both = {**position, INSIDE: 0, HALF: axis(BOTH, 2 * self._plan.k)}
        value = scope.evaluate(with_index(load, lambda index: substitute(index, both)))
        tile = scope.spread(value.text, value.dims, frozenset((outer, BOTH)))
        names = [scope.name() for _ in range(narrow.numbers)]
        shape = f"[{outer.upper()}BLOCK, KBLOCK, {narrow.numbers}]"
        self._out.line(f"{', '.join(names)} = tl.split(tl.reshape({tile}, {shape}))")
        return [f"tl.trans({name})" for name in names] if dims[0] == INSIDE else names

    def _operand(self, scope: MemoryScope, operand: Operand, dims: str) -> str:
        """The text of a whole tile of an operand."""
        value = scope.value(operand.value)
        text, had = scope.typed(value), value.dims
        masks = scope.coordinates.mask("k")
        if masks and not self._zero_beyond(operand):
            # what is computed of nothing need not be nothing
            zero = f"tl.full((), 0, {triton_type(operand.dtype)})"
            text, had = f"tl.where({masks[0]}, {text}, {zero})", had | {"k"}
        return scope.spread(text, had, frozenset(dims))

    def _zero_beyond(self, operand: Operand) -> bool:
        """Whether an operand is zero beyond the end of the depth by itself."""
        defined = {stmt.targets[0]: stmt for stmt in operand.body}
        stmt = defined[operand.value]
        while isinstance(stmt, Cast) and not stmt.bitwise:
            stmt = defined[stmt.arg]
        if not isinstance(stmt, Load) or not _names(stmt) & set(self._found.depth):
            return False
        if stmt.other is None:
            return True
        other = defined[stmt.other]
        return isinstance(other, Constant) and other.value == 0

    def _precision(self) -> str:
        """How the instruction multiplies and adds."""
        left, dtype = self._found.contraction.left.dtype, self._found.contraction.dtype
        if left is DType.f32:
            return f', input_precision="{"ieee" if self._found.is_exact else "tf32"}"'
        if left.is_eight_bit_float:
            return f", max_num_imprecise_acc={min(_ACCURATE, self._plan.k)}"
        return "" if dtype is DType.f32 else f", out_dtype={triton_type(dtype)}"

    def _scope(self, kind: type[MemoryScope], names: str, letter: str) -> MemoryScope:
        return kind(*self._scope_parts(names, letter))

    def _scope_parts(self, names: str, letter: str) -> tuple[Any, ...]:
        """What a scope for a tile of some dimensions is made of."""
        plan: Plan = self._plan.plan(self._found, *names)
        coordinates = TileCoordinates(self.coordinates, names, letter)
        return self._moved, self._facts, plan, coordinates, self._out, self.arguments, letter


def _names(stmt: Statement) -> set[str]:
    """Axes in a statement's own text."""
    return {name for index in indices(stmt) for name in free_axes(index)}
