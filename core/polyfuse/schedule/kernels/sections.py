"""The sections of a kernel: statements of each effect, and values stored in row buffers between loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from polyfuse.ir.expr import Access, Expr, load, walk
from polyfuse.ir.kernel import RowBuffer, Section
from polyfuse.ir.ops import CONTRACTIONS, REDUCTIONS, SCALAR_OPS, SCANS
from polyfuse.ir.statements import Statement, Store, definition, statement
from polyfuse.schedule.fusion.space import Space
from polyfuse.schedule.kernels.body import Effect, carried, loop_dependent, result_type, top_down
from polyfuse.symbolic import IndexLike, axis_name, axis_size, flat_index, product

_ROW = "%row"
"""Prefix of row buffers until arguments have names; no graph names a buffer so."""

_WORTH_KEEPING = 10
"""Operations that an expression needs before keeping its value for a later loop beats computing it again."""


@dataclass
class Layout:
    """Sections under construction. `hint` gives the example value of a size."""

    effects: list[Effect]
    ready: dict[Expr, int]
    space: Space
    hint: Callable[[IndexLike], int]
    row_bytes: int
    names: dict[Expr, str] = field(default_factory=dict)
    loop_names: dict[Expr, str] = field(default_factory=dict)
    parallel: list[list[Statement]] = field(default_factory=list)
    looped: list[list[Statement]] = field(default_factory=list)
    counter: int = 0
    carried: dict[tuple[int, int], str] = field(default_factory=dict)

    def sections(self) -> tuple[tuple[Section, ...], tuple[RowBuffer, ...]]:
        """Emit every effect into its section."""
        last = max((e.section + (e.level == "R") for e in self.effects), default=0)
        self.parallel = [[] for _ in range(last + 1)]
        self.looped = [[] for _ in range(last + 1)]
        roots = [x for e in self.effects for x in e.exprs]
        self.varies = loop_dependent(roots, [axis_name(a) for a in self.space.raxes])
        self.mutable = self._inout()
        reloaded, row_buffers = self._reloaded()
        self.reloaded = reloaded
        for k in range(last + 1):
            for effect in self.effects:
                if effect.section == k and effect.level == "P":
                    self._effect(effect, k, self.parallel[k], looped=False)
            self.loop_names = {}
            for effect in self.effects:
                if effect.section == k and effect.level == "R":
                    self._effect(effect, k, self.looped[k], looped=True)
        out: list[Section] = []
        for k in range(last + 1):
            if self.parallel[k]:
                out.append(Section(False, tuple(self.parallel[k])))
            if self.looped[k]:
                out.append(Section(True, tuple(self.looped[k])))
        return tuple(out), row_buffers

    def _inout(self) -> frozenset[str]:
        """Buffers that the kernel both loads (their old content) and stores."""
        loaded = {x.buffer for e in self.effects for x in walk(*e.exprs) if x.op == "load"}
        return frozenset(e.buffer for e in self.effects if e.op == "store" and e.buffer in loaded)

    def _reloaded(self) -> tuple[dict[Expr, tuple[int, Expr]], tuple[RowBuffer, ...]]:
        """Values computed in one loop that a later loop should read back: (section that has them, how to load
        them).
        """
        reloaded: dict[Expr, tuple[int, Expr]] = {}
        row_buffers: list[RowBuffer] = []
        row = product(axis_size(a) for a in self.space.raxes)
        position = flat_index(self.space.raxes)
        seen: dict[Expr, int] = {}
        for effect in self.effects:
            if effect.op == "scan":
                for i in range(SCANS[effect.kind].results):
                    dtype = result_type(effect.kind, i, effect.exprs)
                    seen[carried("scan", effect.serial, i, dtype)] = effect.section
        stores = {
            e.exprs[0]: e
            for e in reversed(self.effects)
            if e.op == "store" and e.kind == "set" and e.level == "R" and not e.indirect and not e.masked
        }
        for k in range(len(self.looped)):
            roots = [x for e in self.effects if e.section == k and e.level == "R" for x in e.exprs]
            visited: list[Expr] = []

            def stop(expr: Expr, k: int = k) -> bool:
                if not self.varies(expr) or expr in reloaded:
                    return True
                first = seen.get(expr)
                if first is None or first >= k or not self._worth(expr, row, k):
                    return False
                store = stores.get(expr)
                if store is not None and store.section < k:
                    reloaded[expr] = (store.section, load(store.buffer, store.index, expr.dtype))
                else:
                    name = f"{_ROW}{len(row_buffers)}"
                    row_buffers.append(RowBuffer(name, expr.dtype, row))
                    reloaded[expr] = (first, load(name, position, expr.dtype))
                return True

            for expr in top_down(roots, stop):
                if self.varies(expr):
                    visited.append(expr)
            for expr in visited:
                seen.setdefault(expr, k)
        return reloaded, tuple(row_buffers)

    def _worth(self, expr: Expr, row: IndexLike, k: int) -> bool:
        """Whether a value known in an earlier loop should be, or must be, stored for loop `k`."""
        if expr.op == "scanned":
            return True
        if expr.op == "load":
            return (bool(expr.indirect) and self._row_fits(expr, row)) or self._is_overwritten(expr, k)
        if any(x.op == "scanned" or self._is_overwritten(x, k) for x in walk(expr)):
            return True
        if not self._row_fits(expr, row):
            return False
        slow = any(x.op in SCALAR_OPS and SCALAR_OPS[x.op].slow for x in walk(expr) if self.varies(x))
        return slow or expr.weight >= _WORTH_KEEPING

    def _is_overwritten(self, expr: Expr, k: int) -> bool:
        """Whether an earlier section than `k` stores to what a load reads."""
        return (
            expr.op == "load"
            and expr.buffer in self.mutable
            and any(
                e.op == "store" and e.buffer == expr.buffer and e.section + (e.level == "R") <= k
                for e in self.effects
            )
        )

    def _is_outside(self, expr: Expr, k: int) -> bool:
        """Whether a value is the same all along the loops, and known before loop `k`."""
        return not self.varies(expr) and self.ready[expr] <= k

    def _row_fits(self, expr: Expr, row: IndexLike) -> bool:
        return self.hint(row) * expr.dtype.itemsize <= self.row_bytes

    def _effect(self, effect: Effect, k: int, out: list[Statement], looped: bool) -> None:
        if effect.op == "store" and effect.buffer in self.mutable:
            # the old content is read by later statements too: load it before it is overwritten. What a loop
            # reads that is the same all along it is loaded outside, where the store may be
            for other in self.effects:
                if other.section < k:
                    continue
                for expr in walk(*other.exprs):
                    if expr.op != "load" or expr.buffer != effect.buffer or expr in self.reloaded:
                        continue
                    if other.level == effect.level or self._is_outside(expr, k):
                        self._value(expr, k, looped)
        args = tuple(self._value(x, k, looped) for x in effect.exprs)
        if effect.op == "store":
            access = Access(effect.buffer, effect.index, effect.indirect, effect.masked)
            out.append(statement("store", (), args, effect.exprs[0].dtype, (access, effect.kind)))
            return
        count = ({**REDUCTIONS, **CONTRACTIONS} if effect.op == "reduce" else SCANS)[effect.kind].results
        targets = tuple(self._name() for _ in range(count))
        pending: list[tuple[Expr, str]] = []
        for i, target in enumerate(targets):
            self.carried[effect.serial, i] = target
            if effect.op == "scan":
                # a scan's value is known only in its own loop; later loops read it back
                dtype = result_type(effect.kind, i, effect.exprs)
                result = carried("scan", effect.serial, i, dtype)
                self.loop_names[result] = target
                pending.append((result, target))
        dtype = result_type(effect.kind, 0, effect.exprs)
        out.append(statement(effect.op, targets, args, dtype, effect.kind))
        for result, target in pending:
            self._store_row(result, target, k)

    def _name(self) -> str:
        self.counter += 1
        return f"v{self.counter}"

    def _value(self, root: Expr, k: int, looped: bool) -> str:
        """The name of `root`'s value in looped section `k` (or the parallel section before it), emitting what
        it lacks.
        """
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            expr, ready = stack.pop()
            if self._lookup(expr) is not None:
                continue
            stored = self.reloaded.get(expr) if looped else None
            if stored is not None and stored[0] < k:
                self._emit_load_back(expr, stored[1], k)
                continue
            if ready:
                self._emit(expr, k)
                continue
            stack.append((expr, True))
            stack.extend((a, False) for a in reversed(expr.args))
        found = self._lookup(root)
        assert found is not None
        return found

    def _lookup(self, expr: Expr) -> str | None:
        if expr.op == "reduced":
            return self.carried.get(expr.payload)
        return self.loop_names.get(expr) or self.names.get(expr)

    def _emit(self, expr: Expr, k: int) -> None:
        name = self._name()
        inside = self.varies(expr) and bool(self.space.raxes)
        args = tuple(self._lookup(a) or "" for a in expr.args)
        stmt = definition(name, expr, args)
        if inside:
            self.looped[k].append(stmt)
            self.loop_names[expr] = name
            self._store_row(expr, name, k)
        else:
            self.parallel[self.ready[expr]].append(stmt)
            self.names[expr] = name

    def _store_row(self, expr: Expr, name: str, k: int) -> None:
        """Store a value that a later loop reads back, if it is one."""
        stored = self.reloaded.get(expr)
        if stored is not None and stored[0] == k and stored[1].buffer.startswith(_ROW):
            self.looped[k].append(Store(stored[1].buffer, stored[1].index, name, expr.dtype))

    def _emit_load_back(self, expr: Expr, how: Expr, k: int) -> None:
        name = self._name()
        self.looped[k].append(definition(name, how, ()))
        self.loop_names[expr] = name
