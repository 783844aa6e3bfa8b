"""What is known of a kernel's values before any text is written: dependences, ranges, accesses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import IndexValue, Load, Reduce, Scan, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.kit.spans import Span, fits_i32, span_of
from polyfuse.symbolic import IndexLike, axis_name, free_axes
from polyfuse_cpp.loops.ops import cost_of

__all__ = ["Access", "Facts", "analyse"]


@dataclass(frozen=True)
class Access:
    """One load or store: where it happens and at what index."""

    stmt: Load | Store
    buffer: str
    index: IndexLike
    indirect: tuple[str, ...]
    mode: str
    section: int

    @property
    def is_store(self) -> bool:
        """Whether memory is written."""
        return self.mode != "load"


@dataclass(frozen=True)
class Facts:
    """Facts about a kernel, by the names of its values.

    Attributes:
        axes, raxes: names, outermost first.
        sizes: extent of every axis by name.
        hints: example extent of every axis by name.
        depends: axes on which a value depends.
        ranges: inclusive bounds of i64 values that are known to fit in 32 bits.
        accesses: every load and store, in order.
        written: buffers that the kernel writes.
        local_names: buffers that are scratch of one parallel point.
        dtypes: type of every value.
        memory: element type of every buffer.
        cost: rough price of one innermost point, in vector additions.
    """

    axes: tuple[str, ...]
    raxes: tuple[str, ...]
    sizes: Mapping[str, IndexLike]
    hints: Mapping[str, int]
    depends: Mapping[str, frozenset[str]]
    ranges: Mapping[str, tuple[int, int]]
    accesses: tuple[Access, ...]
    written: frozenset[str]
    local_names: frozenset[str]
    dtypes: Mapping[str, DType]
    memory: Mapping[str, DType]
    cost: int

    def is_pure(self, stmt: Statement) -> bool:
        """Whether a statement may run earlier and more or less often: it reads nothing that the kernel
        writes.
        """
        if isinstance(stmt, (Store, Reduce, Scan)):
            return False
        return not isinstance(stmt, Load) or stmt.buffer not in self.written

    def depends_of(self, stmt: Statement) -> frozenset[str]:
        """Axes on which the values of a statement depend; for a store, those on which its place or value
        does.
        """
        if stmt.targets:
            return self.depends[stmt.targets[0]]
        return _stmt_depends(stmt, self.depends)


def analyse(kernel: Kernel) -> Facts:
    """The facts of a kernel."""
    axes = tuple(axis_name(a) for a in kernel.axes)
    raxes = tuple(axis_name(a) for a in kernel.raxes)
    names = axes + raxes
    sizes = dict(zip(names, (*kernel.sizes, *kernel.rsizes)))
    local_names = frozenset(b.name for b in kernel.row_buffers)
    memory = {a.name: a.dtype for a in kernel.args if a.kind != "size"}
    memory.update({b.name: b.dtype for b in kernel.row_buffers})
    accesses = tuple(_accesses(kernel))
    depends: dict[str, frozenset[str]] = {}
    ranges: dict[str, tuple[int, int]] = {}
    spans: dict[str, Span] = {}
    dtypes: dict[str, DType] = {}
    everything = frozenset(names)
    for section in kernel.sections:
        for stmt in section.body:
            found = _stmt_depends(stmt, depends)
            match stmt:
                case Reduce():
                    found -= frozenset(raxes)
                case Scan():
                    found |= everything
                case Load() if stmt.buffer in local_names:
                    # scratch differs from point to point whether or not its index says so
                    found |= frozenset(axes)
            types = _target_types(stmt, dtypes)
            for target, dtype in zip(stmt.targets, types):
                depends[target] = found
                dtypes[target] = dtype
            if len(stmt.targets) == 1:
                span = span_of(stmt, [spans.get(a) for a in stmt.args])
                if span is not None:
                    spans[stmt.targets[0]] = span
                    if stmt.dtype is DType.i64 and fits_i32(span):
                        ranges[stmt.targets[0]] = (int(span[0]), int(span[1]))
    return Facts(
        axes=axes,
        raxes=raxes,
        sizes=sizes,
        hints=_hints(kernel, names, sizes),
        depends=depends,
        ranges=ranges,
        accesses=accesses,
        written=frozenset(a.buffer for a in accesses if a.is_store),
        local_names=local_names,
        dtypes=dtypes,
        memory=memory,
        cost=max(1, sum(cost_of(s.op) for part in kernel.sections for s in part.body)),
    )


def _target_types(stmt: Statement, dtypes: Mapping[str, DType]) -> tuple[DType, ...]:
    """Types of a statement's targets: positions are i64, all else has the statement's type."""
    if stmt.op in ("reduce", "scan") and len(stmt.args) == 2:
        return (stmt.dtype, dtypes.get(stmt.args[1], DType.i64))
    return (stmt.dtype,) * len(stmt.targets)


def _accesses(kernel: Kernel) -> Iterator[Access]:
    for number, section in enumerate(kernel.sections):
        for stmt in section.body:
            if isinstance(stmt, (Load, Store)):
                mode = stmt.mode if isinstance(stmt, Store) else "load"
                yield Access(stmt, stmt.buffer, stmt.index, stmt.indirect, mode, number)


def _stmt_depends(stmt: Statement, depends: Mapping[str, frozenset[str]]) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for argument in stmt.args:
        found |= depends[argument]
    if isinstance(stmt, (Load, Store, IndexValue)):
        found |= frozenset(a for a in free_axes(stmt.index) if not a.startswith("@"))
    return found


def _hints(kernel: Kernel, names: tuple[str, ...], sizes: Mapping[str, IndexLike]) -> dict[str, int]:
    hints: dict[str, int] = {}
    for place, name in enumerate(names):
        size = sizes[name]
        if isinstance(size, int):
            hints[name] = size
        else:
            hints[name] = kernel.size_hints[place] if place < len(kernel.size_hints) else 512
    return hints
