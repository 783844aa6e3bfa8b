"""From the members of a unit to the sections of a kernel, as expressions.

Values that one member stores and another loads are passed on as expressions; then every effect (store,
reduce, scan) is given its section: a looped section needs what earlier loops reduced, so it comes after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from polyfuse.ir.expr import Expr, apply, reindex, walk
from polyfuse.ir.nodes import LoopNode, Pointwise, Reduction, Scan, Scatter
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import accumulates
from polyfuse.rewrite import cast
from polyfuse.schedule.fusion.units import Member
from polyfuse.schedule.kernels.outlines import BufferFacts
from polyfuse.symbolic import IndexLike, free_axes, substitute


@dataclass(frozen=True)
class Effect:
    """One effect of a kernel.

    Attributes:
        op: ``"store"``, ``"reduce"``, ``"scan"``.
        exprs: operands: value, indirect indices and mask of a store; operands of a reduce or scan.
        kind: store mode, or kind of reduce or scan.
        buffer, index: of a store.
        indirect: number of indirect operands; masked: whether the last operand is a mask.
        level: ``"P"`` or ``"R"``.
        serial: number of a reduce or scan, which its results name.
        section: see `assign_sections`.
    """

    op: str
    exprs: tuple[Expr, ...]
    kind: str
    level: str
    buffer: str = ""
    index: IndexLike = 0
    indirect: int = 0
    masked: bool = False
    serial: int = -1
    section: int = 0


class Carried(NamedTuple):
    """Payload of a ``reduced`` or ``scanned`` expression: result `number` of reduce or scan `serial`."""

    serial: int
    number: int


def carried(op: str, serial: int, result: int, dtype: DType) -> Expr:
    """The value that result `result` of reduce or scan number `serial` has where it is read."""
    return Expr("reduced" if op == "reduce" else "scanned", (), dtype, Carried(serial, result))


# Types to which a value that is stored and loaded is only rounded; who stores eight bits wants their values.
_ROUNDED = (DType.bf16, DType.f16)


class _Stored(NamedTuple):
    """A value that an earlier member stored: as memory holds it, and as it is where it is widened again."""

    narrow: Expr
    wide: Expr


@dataclass
class _Builder:
    buffers: Mapping[str, BufferFacts]
    keeps_wide: bool
    effects: list[Effect] = field(default_factory=list)
    stored: dict[str, _Stored] = field(default_factory=dict)

    def take(self, expr: Expr, mapping: Mapping[str, IndexLike]) -> Expr:
        """`expr` in the kernel's axes; loads of what earlier members stored become these values."""
        moved = reindex(expr, mapping)
        if not self.stored:
            return moved
        done: dict[Expr, Expr] = {}
        for part in walk(moved):
            args = tuple(done[a] for a in part.args)
            if self._forwards(part):
                done[part] = self._read(part, args).narrow
            elif part.op == "cast":
                read = part.args[0]
                wide = self._read(read, [done[a] for a in read.args]).wide if self._forwards(read) else None
                # rounding is skipped between a store and a load alone: conversions that are written round
                same = wide is not None and wide.dtype is part.dtype
                done[part] = wide if wide is not None and same else cast(args[0], part.dtype)
            else:
                done[part] = part if args == part.args else Expr(part.op, args, part.dtype, part.payload)
        return done[moved]

    def _forwards(self, expr: Expr) -> bool:
        return expr.op == "load" and expr.buffer in self.stored and not expr.indirect

    def _read(self, load: Expr, args: Sequence[Expr]) -> _Stored:
        """What a load reads. Members share a kernel only where they access one element, though with sizes
        that are not known its index may be written in two ways."""
        known = self.stored[load.buffer]
        if load.mask is None:
            return known
        mask, other = args
        return _Stored(*(apply_mask(value, mask, other) for value in known))

    def store(self, level: str, buffer: str, index: IndexLike, value: Expr) -> None:
        """Note a plain store; buffers that only this kernel needs are not written."""
        dtype = self.buffers[buffer].dtype
        narrow = cast(value, dtype) if dtype is not None else value
        skips = self.keeps_wide and dtype in _ROUNDED
        self.stored[buffer] = _Stored(narrow, value if skips else narrow)
        if not self.buffers[buffer].removed:
            self.effects.append(Effect("store", (narrow,), "set", level, buffer, index))


def apply_mask(value: Expr, mask: Expr, other: Expr) -> Expr:
    """`value` where `mask` holds, else `other`; memory types are widened for the choice."""
    wide = value.dtype.compute
    chosen = apply("where", mask, cast(value, wide), cast(other, wide))
    return cast(chosen, value.dtype)


def effects_of(
    members: Sequence[Member],
    mapping: Mapping[str, IndexLike],
    buffers: Mapping[str, BufferFacts],
    keeps_wide: bool,
) -> list[Effect]:
    """Effects of all members in program order, in the axes that `mapping` gives for the unit's own."""
    build = _Builder(buffers, keeps_wide)
    for member in members:
        node = member.node
        assert isinstance(node, LoopNode)
        rename = {name: substitute(value, mapping) for name, value in member.mapping.items()}
        if isinstance(node, Pointwise):
            value = build.take(node.value, rename)
            build.store(member.level, node.output, substitute(node.index, rename), value)
        elif isinstance(node, (Reduction, Scan)):
            _carry(build, node, rename)
        elif isinstance(node, Scatter):
            exprs = [build.take(e, rename) for e in node.expressions()]
            index = substitute(node.index, rename)
            masked = node.mask is not None
            dtype = buffers[node.target].dtype
            if dtype is not None:
                exprs[0] = cast(exprs[0], dtype)
            build.effects.append(
                Effect(
                    "store",
                    tuple(exprs),
                    node.mode,
                    member.level,
                    node.target,
                    index,
                    len(node.indirect),
                    masked,
                )
            )
    return build.effects


def _carry(build: _Builder, node: Reduction | Scan, rename: Mapping[str, IndexLike]) -> None:
    serial = len(build.effects)
    op = "reduce" if isinstance(node, Reduction) else "scan"
    values = tuple(build.take(e, rename) for e in node.values)
    build.effects.append(Effect(op, values, node.kind, "R", serial=serial))
    index = substitute(node.index, rename)
    for result, output in enumerate(node.outputs):
        if output:
            value = carried(op, serial, result, result_type(node.kind, result, values))
            build.store("P" if op == "reduce" else "R", output, index, value)


def result_type(kind: str, result: int, values: Sequence[Expr]) -> DType:
    """Type of a reduction's or scan's result: the operand's, i64 for positions, wider for GEMMs."""
    if kind in CONTRACTIONS:
        return accumulates(values[0].dtype)
    if result == 1 and len(values) == 2:
        return DType.i64
    return values[0].dtype


def assign_sections(
    effects: Sequence[Effect], loop_axes: Sequence[str]
) -> tuple[list[Effect], dict[Expr, int]]:
    """The effects with their sections, and the first section in which each expression is known.

    Looped section `k` runs after parallel section `k`, before the next parallel one.
    """
    varies = loop_dependent([x for effect in effects for x in effect.exprs], loop_axes)
    done: dict[int, int] = {}
    ready: dict[Expr, int] = {}
    latest_read: dict[str, int] = {}
    # what a loop loads anew at each of its points, if only for a mask, is overwritten after the loop
    after_loops: dict[str, int] = {}
    out: list[Effect] = []
    for effect in effects:
        section = 0
        for expr in walk(*effect.exprs):
            need = max((ready[a] for a in expr.args), default=0)
            if expr.op == "reduced":
                need = done[expr.payload.serial] + 1
            elif expr.op == "scanned":
                need = done[expr.payload.serial]
            ready[expr] = need
            section = max(section, need)
        if effect.op == "store":
            section = max(section, latest_read.get(effect.buffer, 0))
            if effect.level == "P":
                section = max(section, after_loops.get(effect.buffer, 0))
        for expr in walk(*effect.exprs):
            if expr.op == "load":
                latest_read[expr.buffer] = max(latest_read.get(expr.buffer, 0), section)
                if effect.level == "R" and varies(expr):
                    after_loops[expr.buffer] = max(after_loops.get(expr.buffer, 0), section + 1)
        if effect.serial >= 0:
            done[effect.serial] = section
        out.append(replace(effect, section=section))
    return out, ready


def loop_dependent(roots: Sequence[Expr], loop_axes: Sequence[str]) -> Callable[[Expr], bool]:
    """A test whether an expression changes along the loop axes."""
    names = frozenset(loop_axes)
    memo: dict[Expr, bool] = {}

    def test(root: Expr) -> bool:
        if root in memo:
            return memo[root]
        for expr in walk(root):
            if expr not in memo:
                memo[expr] = any(memo[a] for a in expr.args) or _varies(expr, names)
        return memo[root]

    for root in roots:
        test(root)
    return test


def _varies(expr: Expr, names: frozenset[str]) -> bool:
    if expr.op == "scanned" or expr.op == "rand":
        return True
    return expr.op in ("load", "index") and not names.isdisjoint(free_axes(expr.index))


def top_down(roots: Sequence[Expr], stop: Callable[[Expr], bool]) -> Iterator[Expr]:
    """Expressions from the roots downwards, not looking below those where `stop` holds."""
    seen: set[Expr] = set()
    stack = list(reversed(roots))
    while stack:
        expr = stack.pop()
        if expr in seen:
            continue
        seen.add(expr)
        yield expr
        if not stop(expr):
            stack.extend(reversed(expr.args))
