"""A Kernel as C++ text: the loops, the threads and the entry point around the statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.kernel import Kernel, Stmt
from polyfuse.plugin import Source
from polyfuse.symbolic import IndexLike, coefficient, product
from polyfuse_cpp.address import index_text, safe_name, static_multiple
from polyfuse_cpp.body import Frame
from polyfuse_cpp.facts import Facts, analyse
from polyfuse_cpp.nest import emit_sections
from polyfuse_cpp.ops import vector_type
from polyfuse_cpp.split import Scratch, Stage, stages_of
from polyfuse_cpp.tiling import Plan, Split, choose_plan, choose_split, is_apart
from polyfuse_cpp.writer import Writer

__all__ = ["KernelText", "kernel_text"]

_STACK_BYTES = 16384
_TILE_LANE = 1024
"""Extent along the lanes of a block of tiles: long, so that results are written row by row."""


@dataclass(frozen=True)
class KernelText:
    """The text of one kernel, and the headers of the vector layer that it needs."""

    text: str
    features: tuple[str, ...]
    signature: str


def kernel_text(kernel: Kernel, lanes: int, lane_at: int = 0, unroll: int = 0) -> KernelText:
    """The C++ function of a kernel, named `Source.SYMBOL`; choices are those of `tiling.choose_plan`."""
    facts = analyse(kernel)
    plan = choose_plan(kernel, facts, lanes, lane_at, unroll)
    split = choose_split(kernel, facts, plan)
    out = Writer()
    features: set[str] = {"kernel", "omp"}
    out.line("namespace pf {")
    passes, scratch = [Stage(kernel)], list[Scratch]()
    if split is not None:
        passes, scratch = stages_of(kernel, facts, split)
    stages: list[_Stage] = []
    for number, single in enumerate(passes):
        its_facts = facts if split is None else analyse(single.kernel)
        its_plan = plan if split is None else choose_plan(single.kernel, its_facts, lanes)
        name = f"{Source.SYMBOL}_run{number if len(passes) > 1 else ''}"
        stages.append(
            _Stage(single.kernel, its_facts, replace(its_plan, limits=single.limits), out, features, name)
        )
        stages[-1].emit()
    _entry(kernel, facts, stages, scratch, split, out)
    out.line("}  // namespace pf")
    out.line(f"using pf::{Source.SYMBOL};")
    signature = "".join("i" if a.kind == "size" else "p" for a in kernel.args)
    text = out.text()
    if "floor_div(" in text or "remainder(" in text:
        features.add("divide")  # addresses divide too, not only values
    return KernelText(text, tuple(sorted(features)), signature)


def parameters(kernel: Kernel) -> str:
    """The parameter list."""
    parts = []
    for argument in kernel.args:
        name = safe_name(argument.name)
        if argument.kind == "size":
            parts.append(f"i64 {name}")
        else:
            constant = "const " if argument.kind == "in" else ""
            parts.append(f"{constant}{argument.dtype}* {name}")
    return ", ".join(parts)


def _entry(
    kernel: Kernel,
    facts: Facts,
    stages: Sequence[_Stage],
    scratch: Sequence[Scratch],
    split: Split | None,
    out: Writer,
) -> None:
    """The function that callers see: it runs the stages, each with as many threads as it is worth."""
    head = f'extern "C" __attribute__((visibility("default"))) void {Source.SYMBOL}({parameters(kernel)})'
    with out.block(head):
        points = product(facts.sizes[a] for a in facts.axes)
        if not isinstance(points, int) or points == 0:
            out.line(f"if (({index_text(points)}) <= 0) return;")
        if split is not None:
            out.line(f"const i64 chunks = index_max(1, ({split.extent} + {split.size - 1}) / {split.size});")
        for piece in scratch:
            size = f"({index_text(piece.size)}) * {piece.dtype.itemsize} + 64"
            out.line(f"{piece.dtype}* const {piece.name} = ({piece.dtype}*)scratch_new({size});")
        for stage in stages:
            if len(stages) == 1:
                _launch(stage, out)
                continue
            with out.block():
                _launch(stage, out)
        for piece in scratch:
            out.line(f"scratch_free({piece.name});")


def _launch(stage: _Stage, out: Writer) -> None:
    plan, facts = stage.plan, stage.facts
    passed = "".join(f"{safe_name(a.name)}, " for a in stage.kernel.args)
    out.line(f"const i64 items = {items_text(plan, facts)};")
    alone = f"{stage.name}({passed}0, items, true);"
    if plan.serial:
        out.line(alone)
        return
    limited = {name for name, _, _ in plan.limits}
    total = product(facts.sizes[a] for a in (*facts.axes, *facts.raxes) if not limited or a != "chunk")
    out.line(f"const int team = team_for(items, ({index_text(total)}) * {facts.cost});")
    with out.block("if (team == 1)", "} else {"):
        out.line(alone)
    out.line("  #pragma omp parallel num_threads(team)")
    with out.block("  "):
        out.line("const i64 at = omp_get_thread_num(), of = omp_get_num_threads();")
        out.line(f"{stage.name}({passed}items * at / of, items * (at + 1) / of, {str(plan.along).lower()});")
    out.line("}")


def items_text(plan: Plan, facts: Facts) -> str:
    """How many pieces of work there are to share out."""
    if not plan.lane or plan.across:
        return index_text(product(facts.sizes[a] for a in plan.axes))
    if plan.tile:
        rest = product(facts.sizes[a] for a in plan.axes[:-2])
        counts = [
            blocks_text(facts.sizes[plan.tile], tile_side(plan, facts)),
            blocks_text(facts.sizes[plan.lane], _TILE_LANE),
        ]
        return " * ".join(f"({t})" for t in ([] if rest == 1 else [index_text(rest)]) + counts)
    blocks = blocks_text(facts.sizes[plan.lane], plan.lanes)
    if plan.along:
        return blocks
    rest = product(facts.sizes[a] for a in plan.axes[:-1])
    return blocks if rest == 1 else f"({index_text(rest)}) * ({blocks})"


def tile_side(plan: Plan, facts: Facts) -> int:
    """Extent of a block of tiles along its second axis: whole cache lines of the accesses that run along
    it.
    """
    smallest = min(facts.memory[a.buffer].itemsize for a in plan.tiled)
    return max(plan.lanes, 64 // smallest)


def blocks_text(size: IndexLike, lanes: int) -> str:
    """Vectors that cover an extent."""
    if isinstance(size, int):
        return str(-(-size // lanes))
    return f"({index_text(size)} + {lanes - 1}) / {lanes}"


@dataclass
class _Stage:
    """The function that does a range of a kernel's items."""

    kernel: Kernel
    facts: Facts
    plan: Plan
    out: Writer
    features: set[str]
    name: str

    def emit(self) -> None:
        """Write the function."""
        head = (
            f"static __attribute__((noinline)) void {self.name}({parameters(self.kernel)}"
            f"{', ' if self.kernel.args else ''}i64 begin, i64 end, bool alone)"
        )
        with self.out.block(head):
            heap = self._scratch()
            if self.plan.tile:
                self._tiles()
            elif self.plan.lane and not self.plan.across:
                self._lanes_apart()
            else:
                self._points()
            for name in heap:
                self.out.line(f"scratch_free({name});")

    def _scratch(self) -> list[str]:
        """Declare locals; on the heap where they are big or of unknown size."""
        wide = self.plan.lanes * self.plan.unroll if self.plan.lane and not self.plan.across else 1
        heap = []
        for local in self.kernel.locals:
            name, kind = safe_name(local.name), local.dtype
            if isinstance(local.size, int) and local.size * wide * kind.itemsize <= _STACK_BYTES:
                count = max(1, -(-local.size * wide // 16) * 16 + 16)
                self.out.line(f"alignas(64) {kind} {name}[{count}];")
            else:
                size = f"(({index_text(local.size)}) * {wide} + 16) * {kind.itemsize}"
                self.out.line(f"{kind}* const {name} = ({kind}*)scratch_new({size});")
                heap.append(name)
        return heap

    def _frame(self, lane: str | None, copies: int = 1, tail: str | None = None) -> Frame:
        apart = bool(self.plan.lane and not self.plan.across)
        exclusive = frozenset(
            id(a.stmt)
            for a in self.facts.accesses
            if a.is_store
            and a.mode != "set"
            and (self.plan.serial or self.plan.along or self._never_collides(a.stmt))
        )
        return Frame(
            facts=self.facts,
            out=self.out,
            lane=lane,
            lanes=self.plan.lanes,
            copies=copies,
            tail=tail,
            exclusive=exclusive,
            local_lanes=self.plan.lanes * self.plan.unroll if apart else 1,
            features=self.features,
        )

    def _never_collides(self, stmt: Stmt) -> bool:
        access = next(a for a in self.facts.accesses if a.stmt is stmt)
        if any(self.facts.hints[a] != 1 or self.facts.sizes[a] != 1 for a in self.facts.raxes):
            return False
        return all(is_apart(access, a, self.facts) for a in self.facts.axes)

    # Lanes along a reduction axis, or none: one point after the other.

    def _points(self) -> None:
        axes = self.plan.axes
        self._odometer(axes, "begin")
        frame = self._frame(None)
        with self.out.block("for (i64 item = begin; item < end; ++item)"):
            emit_sections(self.kernel, self.plan, frame)
            self._advance(axes)

    def _odometer(self, axes: Sequence[str], start: str) -> None:
        """Positions on `axes` at a flat position."""
        moving = [a for a in axes if self.facts.sizes[a] != 1]
        for name in axes:
            if name not in moving:
                self.out.line(f"const i64 {safe_name(name)} = 0;")
        if not moving:
            return
        if len(moving) == 1:
            self.out.line(f"i64 {safe_name(moving[0])} = {start};")
            return
        self.out.line(f"i64 rest = {start};")
        for name in reversed(moving[1:]):
            size = index_text(self.facts.sizes[name])
            self.out.line(f"i64 {safe_name(name)} = rest % ({size});")
            self.out.line(
                f"rest /= {size};" if size.isidentifier() or size.isdigit() else f"rest /= ({size});"
            )
        self.out.line(f"i64 {safe_name(moving[0])} = rest;")

    def _advance(self, axes: Sequence[str]) -> None:
        moving = [a for a in axes if self.facts.sizes[a] != 1]
        if not moving:
            return
        text = f"++{safe_name(moving[0])};"
        for name in moving[1:]:
            plain = safe_name(name)
            text = f"if (++{plain} == {index_text(self.facts.sizes[name])}) {{ {plain} = 0; {text} }}"
        self.out.line(text)

    # Lanes along a parallel axis: pieces of rows.

    def _lanes_apart(self) -> None:
        plan, out = self.plan, self.out
        size = self.facts.sizes[plan.lane]
        outer = plan.axes[:-1]
        if plan.along:
            self._outer_loops(outer, size)
            return
        if all(self.facts.sizes[a] == 1 for a in outer):
            for name in outer:
                out.line(f"const i64 {safe_name(name)} = 0;")
            out.line(
                f"const i64 from = begin * {plan.lanes}, "
                f"to = index_min(end * {plan.lanes}, {index_text(size)});"
            )
            self._piece()
            return
        blocks = blocks_text(size, plan.lanes)
        out.line(f"const i64 blocks = {blocks};")
        self._odometer(outer, "begin / blocks")
        out.line("i64 block = begin % blocks;")
        with out.block("for (i64 item = begin; item < end;)"):
            out.line("const i64 stop = index_min(blocks, block + end - item);")
            out.line(
                f"const i64 from = block * {plan.lanes}, "
                f"to = index_min(stop * {plan.lanes}, {index_text(size)});"
            )
            with out.block():
                self._piece()
            out.line("item += stop - block;")
            out.line("block = 0;")
            self._advance(outer)

    def _outer_loops(self, outer: Sequence[str], size: IndexLike) -> None:
        plan, out = self.plan, self.out
        if not outer:
            out.line(
                f"const i64 from = begin * {plan.lanes}, "
                f"to = index_min(end * {plan.lanes}, {index_text(size)});"
            )
            self._piece()
            return
        name = safe_name(outer[0])
        with out.block(f"for (i64 {name} = 0; {name} < {index_text(self.facts.sizes[outer[0]])}; ++{name})"):
            self._outer_loops(outer[1:], size)

    def _piece(self) -> None:
        """The lane axis from ``from`` to ``to``: whole steps, then what is left."""
        plan, out, facts = self.plan, self.out, self.facts
        name, wide = safe_name(plan.lane), plan.lanes * plan.unroll
        size = facts.sizes[plan.lane]
        outside = self._frame(plan.lane)
        hoisted = self._hoist(outside)
        out.line(f"i64 {name} = from;")
        with out.block(f"for (; {name} + {wide} <= to; {name} += {wide})"):
            frame = self._frame(plan.lane, plan.unroll)
            frame.env = dict(outside.env)
            emit_sections(self.kernel, plan, frame, hoisted)
        if static_multiple(size, plan.lanes) and plan.unroll == 1:
            return
        with out.block(f"for (; {name} < to; {name} += {plan.lanes})"):
            tail = None
            if not static_multiple(size, plan.lanes):
                out.line(f"const i64 n = index_min({plan.lanes}, to - {name});")
                tail = "n"
            frame = self._frame(plan.lane, 1, tail)
            frame.env = dict(outside.env)
            emit_sections(self.kernel, plan, frame, hoisted)

    # Square tiles of two parallel axes.

    def _tiles(self) -> None:
        """Every item is a block of both axes; inside it, tiles as wide as a vector are turned over."""
        plan, out, facts = self.plan, self.out, self.facts
        self.features.add("tile")
        lane, side = safe_name(plan.lane), safe_name(plan.tile)
        deep = tile_side(plan, facts)
        outer, sizes = plan.axes[:-2], [index_text(facts.sizes[a]) for a in (plan.tile, plan.lane)]
        out.line(f"const i64 down = {blocks_text(facts.sizes[plan.tile], tile_side(plan, facts))};")
        out.line(f"const i64 over = {blocks_text(facts.sizes[plan.lane], _TILE_LANE)};")
        with out.block("for (i64 item = begin; item < end; ++item)"):
            out.line(f"const i64 {side}_a = item / over % down * {deep};")
            out.line(f"const i64 {lane}_a = item % over * {_TILE_LANE};")
            out.line(f"const i64 {side}_e = index_min({side}_a + {deep}, {sizes[0]});")
            out.line(f"const i64 {lane}_e = index_min({lane}_a + {_TILE_LANE}, {sizes[1]});")
            self._odometer(outer, "item / over / down")
            outside = self._frame(plan.lane)
            hoisted = self._hoist(outside)
            lanes = plan.lanes
            with out.block(f"for (i64 {side}_b = {side}_a; {side}_b < {side}_e; {side}_b += {lanes})"):
                out.line(f"const i64 m = index_min({lanes}, {side}_e - {side}_b);")
                with out.block(f"for (i64 {lane} = {lane}_a; {lane} < {lane}_e; {lane} += {lanes})"):
                    out.line(f"const i64 n = index_min({lanes}, {lane}_e - {lane});")
                    self._tile(outside, hoisted)

    def _tile(self, outside: Frame, hoisted: frozenset[int]) -> None:
        """One tile: loads are turned, every row of it is computed, stores are turned back."""
        plan, out, facts = self.plan, self.out, self.facts
        side = safe_name(plan.tile)
        corner = {plan.tile: f"{side}_b"}
        tiles: dict[int, str] = {}
        after: list[str] = []
        for number, access in enumerate(plan.tiled):
            name = f"tile{number}"
            tiles[id(access.stmt)] = f"{name}[{side} - {side}_b]"
            step = coefficient(access.index, plan.lane)
            assert step is not None
            names = {**corner, **{f"@{k}": outside.text(v, False) for k, v in enumerate(access.indirect)}}
            place = f"{safe_name(access.buffer)} + {index_text(access.index, names)}"
            out.line(f"{vector_type(facts.memory[access.buffer])} {name}[{plan.lanes}];")
            if access.is_store:
                after.append(f"tile_store({place}, {name}, {index_text(step)}, n, m);")
            else:
                out.line(f"tile_load({name}, {place}, {index_text(step)}, n, m);")
        whole = static_multiple(facts.sizes[plan.lane], plan.lanes)
        for head, tail in ((f"if (n == {plan.lanes})", None), ("else", "n")):
            if tail and whole:
                continue
            loop = f"for (i64 {side} = {side}_b; {side} < {side}_b + m; ++{side})"
            with out.block("" if whole else head), out.block(loop):
                frame = self._frame(plan.lane, 1, tail)
                frame.env, frame.tiles = dict(outside.env), tiles
                emit_sections(self.kernel, plan, frame, hoisted)
        for line in after:
            out.line(line)

    def _hoist(self, frame: Frame) -> frozenset[int]:
        """Write what no lane changes in front of the lane loop; the statements that are done with."""
        done: set[int] = set()
        for section in self.kernel.sections:
            for stmt in section.body:
                depends = self.facts.depends_of(stmt)
                if not stmt.targets or not self.facts.is_pure(stmt) or stmt.targets[0] in frame.env:
                    continue
                if depends & {self.plan.lane, self.plan.tile, *self.facts.raxes}:
                    continue
                if all(a in frame.env for a in stmt.args):
                    frame.emit(stmt)
                    done.add(id(stmt))
        return frozenset(done)
