"""Loads and stores as Triton text."""

from __future__ import annotations

from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.ir.statements import Load, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike
from polyfuse_triton.loops.scope import Scope, Value
from polyfuse_triton.tiling.picked import row_of

_HARDWARE: dict[str, tuple[DType, ...]] = {
    "add": (DType.f32, DType.f64, DType.f16, DType.bf16, DType.i32, DType.i64, DType.u32, DType.u64),
    "min": (DType.i32, DType.i64, DType.u32, DType.u64),
    "max": (DType.i32, DType.i64, DType.u32, DType.u64),
}
"""Types that each kind of update has an instruction for."""
ATOMIC_MODES = (*_HARDWARE, "mul")
"""Stores that combine with what is there."""


_FAILED = "an index is out of range"
"""What a device says that stops."""


class Sums:
    """What the program of a group of rows adds up in registers."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.found: dict[str, tuple[Store, str]] = {}

    def add(self, stmt: Store, text: str) -> None:
        """One row's share of what a statement adds."""
        name = self._scope.name()
        self.found[stmt.buffer] = (stmt, name)
        self._scope.out.line(f"{name} = {name} + {text}")

    def begin(self) -> list[str]:
        """The lines that stand before the loop over rows."""
        shape = self._scope.shape(dim.name for dim in self._scope.plan.dims)
        return [f"{name} = tl.full({shape}, 0.0, tl.float32)" for _, name in self.found.values()]


class MemoryScope(Scope):
    """A scope with loads and stores.

    What one thread has stored another may load: between them stands a barrier. What was stored at a point and
    is loaded at the same point again is taken from its register.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stored: set[str] = set()
        self._loaded: dict[str, set[tuple[IndexLike, bool]]] = {}
        self._versions: dict[str, int] = {}
        self.fresh_reads: frozenset[str] = frozenset()
        self.last_reads: frozenset[str] = frozenset()
        self._everywhere = frozenset(dim.name for dim in self.plan.dims)
        self.sums = Sums(self)

    # --- loads -----------------------------------------------------------------------------------------

    def evaluate(self, stmt: Statement) -> Value:
        if not isinstance(stmt, Load):
            return super().evaluate(stmt)
        buffer, index, count, masked = stmt.payload
        operands = tuple(self.value(name) for name in stmt.args)
        key = self._key(buffer, index, operands)
        found = self.done.get(key)
        if found is not None:
            return found
        if buffer in self.facts.row_buffers:
            return self._again(stmt)
        if self._memory(buffer) in self._stored:
            self.barrier()
        indirect = operands[:count]
        if buffer in self.plan.picked and (row := self._row(index)) is not None:
            return self._pick(stmt, row, indirect[0], key)
        address = self.indexer(indirect).address(index)
        dims = address.dims.union(*(v.dims for v in operands[count:]))
        if buffer in self.facts.may_change:
            alone = self._by_one_thread(dims)
            self._loaded.setdefault(self._memory(buffer), set()).add((index, alone))
        pointer = self.spread(address.of(self.arguments[buffer]), address.dims, dims)
        masks = list(self.coordinates.mask(dims))
        extra = self.elsewhere(dims, stmt.dtype) if masks else ""
        if masked:
            masks.insert(0, self.typed(operands[count]))
            extra = f", other={self.typed(operands[count + 1])}"
        mask = f", mask={' & '.join(masks)}" if masks else ""
        text = f"tl.load({pointer}{mask}{extra}{self._policy(buffer, dims)})"
        return self.define(text, Value("", stmt.dtype, dims), key)

    def _row(self, index: IndexLike) -> IndexLike | None:
        """The row of which an index picks an element, where a tile is one row."""
        (dim,) = self.plan.dims
        return row_of(index, dim) if dim.is_one and dim.is_full else None

    def _pick(self, stmt: Load, row: IndexLike, at: Value, key: Any) -> Value:
        """An element of a row that the program has read whole."""
        whole = self._key(stmt.buffer, row, ())
        held = self.done.get(whole)
        if held is None:
            address = self.indexer().address(row)
            pointer = address.of(self.arguments[stmt.buffer])
            held = self.define(f"tl.load({pointer})", Value("", stmt.dtype, address.dims), whole)
        where = self.spread(f"tl.cast({self.typed(at)}, tl.int32)", at.dims, self._everywhere)
        found = Value("", stmt.dtype, self._everywhere)
        return self.define(f"tl.gather({held.text}, {where}, 0)", found, key)

    def _memory(self, buffer: str) -> str:
        """One name for all arguments that may be one memory."""
        return self.facts.memories.get(buffer, buffer)

    def _by_one_thread(self, dims: frozenset[str]) -> bool:
        """Whether each element of a tile is loaded by one thread: what does not vary along the whole tile, or
        is less than the threads are, several of them load.
        """
        return dims == self._everywhere and self.plan.elements >= 32 * self.plan.num_warps

    def elsewhere(self, dims: frozenset[str], dtype: DType) -> str:
        """What a load gives beyond the tile's end, as an argument: by default, anything."""
        return ""

    def _key(self, buffer: str, index: IndexLike, operands: tuple[Value, ...]) -> Any:
        given = tuple((v.text, v.dtype, repr(v.constant)) for v in operands)
        return ("load", buffer, self._versions.get(buffer, 0), index, given)

    def _again(self, stmt: Load) -> Value:
        """A value of a row buffer that an earlier section stored: computed again."""
        stored = self.facts.forwarded(stmt)
        if stored is None:
            raise UnsupportedError(
                f"kernel {self.kernel.name} reads a row at another index than it stored it",
                "let the scheduler split it",
            )
        return self.value(stored)

    def _policy(self, buffer: str, dims: frozenset[str]) -> str:
        """How long a loaded line is worth keeping in caches."""
        if not self.plan.walks or "r" not in dims:
            return ""
        if buffer in self.last_reads:
            return ', eviction_policy="evict_first"'
        return ', eviction_policy="evict_last"' if buffer in self.fresh_reads else ""

    def barrier(self) -> None:
        """Wait for all threads of the program, so that each sees what the others stored."""
        self.out.line("tl.debug_barrier()")
        self._stored.clear()
        self._loaded.clear()

    def before_loop(self, body: tuple[Statement, ...]) -> None:
        """Wait where a loop loads what was stored before it, or stores what was loaded."""
        loads = {self._memory(s.buffer) for s in body if isinstance(s, Load)}
        stores = {self._memory(s.buffer) for s in body if isinstance(s, Store)}
        if loads & self._stored or stores & set(self._loaded):
            self.barrier()

    # --- stores ----------------------------------------------------------------------------------------

    def store(self, stmt: Store, looped: bool) -> None:
        """Write a store."""
        buffer, index, count, masked = stmt.payload[0]
        operands = tuple(self.value(name) for name in stmt.args)
        value, indirect = operands[0], operands[1 : 1 + count]
        if buffer in self.facts.row_buffers:
            self.done[self._key(buffer, index, ())] = value
            return
        if self.plan.groups is not None and buffer in self.plan.groups.buffers:
            self.sums.add(stmt, self.spread(self.typed(value), value.dims, self._everywhere))
            return
        self._turn(buffer, index)
        address = self.indexer(indirect).address(index)
        mask = operands[1 + count :] if masked else ()
        dims = address.dims.union(value.dims, *(m.dims for m in mask))
        if stmt.mode == CHECK_MODE and self.kernel.device != "cpu":
            # the host cannot look at the status without waiting: the device stops by itself
            wrong = " & ".join((self.typed(operands[-1]), *self.coordinates.mask(operands[-1].dims)))
            self.out.line(f'tl.device_assert({wrong} == 0, "{_FAILED}")')
            return
        if stmt.mode not in ("set", CHECK_MODE):
            # every point counts, whether or not its index differs
            dims |= {d.name for d in self.plan.dims if looped or d is not self.plan.reduced}
            self._update(stmt, address, value, mask, dims)
            return
        pointer = self.spread(address.of(self.arguments[buffer]), address.dims, dims)
        masks = [*(self.typed(m) for m in mask), *self.coordinates.mask(dims)]
        text = f", mask={' & '.join(masks)}" if masks else ""
        self.out.line(f"tl.store({pointer}, {self.typed(value)}{text})")
        if not masked and not count:
            self.done[self._key(buffer, index, ())] = value

    def forget(self) -> None:
        """What was computed so far is out of reach."""
        self.values.clear()
        self.done.clear()

    def add_once(self, stmt: Store, total: str) -> None:
        """Add what a program has summed up to elements that no other program writes."""
        address = self.indexer().address(stmt.index)
        pointer = self.spread(address.of(self.arguments[stmt.buffer]), address.dims, self._everywhere)
        masks = self.coordinates.mask(self._everywhere)
        mask = f", mask={' & '.join(masks)}" if masks else ""
        self.out.line(f"tl.store({pointer}, tl.load({pointer}{mask}) + {total}{mask})")

    def _turn(self, buffer: str, index: IndexLike) -> None:
        """Note that a buffer's content changes. Whoever else has loaded from there must be done with it."""
        memory = self._memory(buffer)
        if self._loaded.get(memory, set()) - {(index, True)}:
            self.barrier()
        self._stored.add(memory)
        self._versions[buffer] = self._versions.get(buffer, 0) + 1

    def _update(
        self, stmt: Store, address: Any, value: Value, mask: tuple[Value, ...], dims: frozenset[str]
    ) -> None:
        """An atomic update."""
        buffer, mode = stmt.buffer, stmt.mode
        if self.kernel.deterministic and stmt.dtype.is_float and mode in ("add", "mul"):
            raise UnsupportedError(
                f"kernel {self.kernel.name} adds to one element from several threads, in any order",
                "switch deterministic algorithms off, or let eager mode do it",
            )
        masks = [*(self.typed(m) for m in mask), *self.coordinates.mask(dims)]
        if stmt.dtype in _HARDWARE.get(mode, ()):
            pointer = self.spread(address.of(self.arguments[buffer]), address.dims, dims)
            text = f", mask={' & '.join(masks)}" if masks else ""
            self.out.line(f'tl.atomic_{mode}({pointer}, {self.typed(value)}{text}, sem="relaxed")')
            return
        offset = self.spread(address.text(), address.dims, dims)
        values = self.spread(self.typed(value), value.dims, dims)
        condition = " & ".join(masks) if masks else "tl.full((), True, tl.int1)"
        had = frozenset[str]().union(
            *(m.dims for m in mask), (d for d in dims if self.coordinates.mask((d,)))
        )
        condition = self.spread(condition, had, dims)
        self.out.line(f'atomic_update({self.arguments[buffer]}, {offset}, {values}, {condition}, "{mode}")')
