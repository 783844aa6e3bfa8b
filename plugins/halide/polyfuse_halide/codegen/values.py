"""The values of a kernel as text: functions of a point, reductions, scans and rows, section by section;
softmaxes as such: e**(x - largest), which is summed along a row and divided by its sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel, KernelArg, Section
from polyfuse.ir.statements import (
    Cast,
    Constant,
    IndexValue,
    Load,
    Random,
    Reduce,
    Scan,
    Statement,
    Store,
    indices,
    key,
)
from polyfuse.ir.types import DType, e4m3_saturates
from polyfuse.kit import KernelFacts, backward_slice, fits_i32_throughout
from polyfuse.symbolic import Index, IndexLike, axis_name, coefficient, free_axes, python_text
from polyfuse_halide.codegen.address import index_text, indirect_axes, injective_affine
from polyfuse_halide.codegen.ops import MATH, call_text, constant_text


@dataclass(frozen=True)
class Softmaxes:
    """What rounding may be free with.

    Attributes:
        exponentials: of what lies below the largest value of a row, which their sum alone needs: one
            of them is one, so those that are tiny beside it hardly count.
        quotients: of such exponentials and their sum, a number that all of a row have.
    """

    exponentials: frozenset[str] = frozenset()
    quotients: frozenset[str] = frozenset()


def softmaxes_of(facts: KernelFacts) -> Softmaxes:
    """The softmaxes of a kernel."""
    made = {name: found.stmt for name, found in facts.definitions.items()}
    largest = {t: s.args[0] for t, s in made.items() if isinstance(s, Reduce) and s.kind == "max"}
    if not largest:
        return Softmaxes()
    same = _Same(facts)
    powers: set[str] = set()
    for name, stmt in made.items():
        inner = made[stmt.args[0]] if stmt.op == "exp" else stmt
        if stmt.op == "exp" and inner.op == "sub" and inner.args[1] in largest:
            if same.of(inner.args[0]) == same.of(largest[inner.args[1]]):
                powers.add(name)
    uses = [s for s in facts.statements if powers & set(s.args)]
    sums = {s.targets[0]: s.args[0] for s in uses if isinstance(s, Reduce) and s.kind == "sum"}
    needed = {a for s in uses if not (s.targets and s.targets[0] in sums) for a in s.args}
    divisions = (s for s in made.values() if s.op == "div" and s.args[1] in sums)
    found = (s.targets[0] for s in divisions if same.of(s.args[0]) == same.of(sums[s.args[1]]))
    return Softmaxes(frozenset(sums.values()) - needed, frozenset(found))


class _Same:
    """Numbers for values: equal ones for those that are made in the same way from the same elements."""

    def __init__(self, facts: KernelFacts) -> None:
        self._facts = facts
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[str, int] = {}

    def of(self, name: str) -> int:
        """The number of a value."""
        if name not in self._known:
            stmt = self._facts.definition(name)
            row = self._row(stmt) if isinstance(stmt, Load) and not stmt.args else None
            if row is not None and row.dtype is stmt.dtype:
                self._known[name] = self.of(row.value)
            else:
                self._known[name] = self._numbers.setdefault(self._key(name, stmt), len(self._numbers))
        return self._known[name]

    def _row(self, stmt: Load) -> Store | None:
        """The one store to the element of a row buffer that is loaded."""
        stores = self._facts.writes(stmt.buffer) if stmt.buffer in self._facts.row_buffers else ()
        found = stores[0].stmt if len(stores) == 1 else None
        return found if isinstance(found, Store) and found.index == stmt.index else None

    def _key(self, name: str, stmt: Statement) -> tuple[object, ...]:
        if len(stmt.targets) != 1 or (isinstance(stmt, Load) and stmt.buffer in self._facts.written):
            return (name,)
        return (key(stmt), *map(self.of, stmt.args))


LIMIT = 1 << 31
"""Elements of a buffer that Halide's indices reach."""
_REPEATED = ("const", "index", "size")
"""Operations without operands, which each function has for itself."""
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_OF_INDICES = (
    *(*_REPEATED, *_COMPARISONS, "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
    *("cast", "add", "sub", "mul", "floor_div", "remainder", "where"),
)
"""Operations whose results depend on the index alone, if their operands do."""

_MOST = 512 << 10
"""Bytes of scratch that a thread's own cache holds."""


class ValueEmitter:
    """The state of writing the values of one kernel.

    Args:
        transpose: the axis along which loads are transposed; -1: none.
        checked: computed indices are looked at before they are read.
    """

    def __init__(self, kernel: Kernel, transpose: int = -1, checked: bool = False) -> None:
        self.kernel, self.checked = kernel, checked
        self.facts = KernelFacts.of(kernel)
        self.args: dict[str, KernelArg] = {a.name: a for a in kernel.args}
        self.row_buffers = {b.name: b for b in kernel.row_buffers}
        self.axes = [axis_name(a) for a in kernel.axes]
        self.raxes = [axis_name(a) for a in kernel.raxes]
        self.lines: list[str] = []
        self.dtypes = self.facts.dtypes
        self.reduced: dict[str, tuple[int, int, int]] = {}
        self.scanned: dict[str, tuple[str, int]] = {}
        self.narrow: set[str] = set()
        self.short: set[str] = set()
        self.indices: set[str] = set()
        self.row_of: dict[str, str] = {}
        self.softmaxes = softmaxes_of(self.facts)
        self.side_by_side = 0
        self.transpose = transpose
        self.numbers: dict[str, float] = {}
        self._study()

    def _study(self) -> None:
        for number, section in enumerate(self.kernel.sections):
            position = reduces = 0
            for stmt in section.body:
                for k, target in enumerate(stmt.targets):
                    if stmt.op == "reduce":
                        self.reduced[target] = (number, reduces, k)
                        if k == 1 and len(stmt.args) > 1 and stmt.args[1] in self.narrow:
                            self.short.add(target)
                    elif stmt.op == "scan":
                        self.scanned[target] = (f"scan{number}_{position}", k)
                if stmt.op in ("reduce", "scan"):
                    position += 1
                    reduces += stmt.op == "reduce"
                if stmt.op in _OF_INDICES and self.indices.issuperset(stmt.args):
                    self.indices.update(stmt.targets)
                match stmt:
                    case IndexValue(op="index") if fits_i32_throughout(stmt.index):
                        self.narrow.add(stmt.target)
                    case Constant() if stmt.dtype.is_float:
                        self.numbers[stmt.target] = float(stmt.value)
                    case Constant(dtype=DType.i64) if abs(stmt.value) < LIMIT:
                        self.narrow.add(stmt.target)

    # --- sections -------------------------------------------------------------------------------------------

    def _section(self, number: int, section: Section) -> None:
        if not section.looped:
            wanted = self._exported(number)
            if wanted:
                names = ", ".join(wanted)
                self._function(f"section{number}", number, wanted, f"({names},)", memo=True)
            return
        position = 0
        reduces: list[Reduce] = []
        for stmt in section.body:
            if isinstance(stmt, Reduce):
                reduces.append(stmt)
                position += 1
            elif isinstance(stmt, Scan):
                name = f"scan{number}_{position}"
                self._function(f"{name}_of", number, stmt.args, tuple_text(stmt.args))
                self.lines.append(f'{name} = p.scan("{name}", "{stmt.kind}", {name}_of)')
                position += 1
            elif isinstance(stmt, Store) and stmt.buffer in self.row_buffers:
                self._local(number, stmt)
        reused = reused_value(self.facts, section, self.side_by_side) if reduces and self.side_by_side else ""
        if reused:
            self._function(f"reused{number}_of", number, [reused], tuple_text([reused]))
            self.lines.append(f'reused{number} = p.row("reused{number}", reused{number}_of)')
            self.row_of.setdefault(reused, f"reused{number}")
        if reduces:
            operands = [a for s in reduces for a in s.args]
            texts = [self._operand(number, s, k) for s in reduces for k in range(len(s.args))]
            self._function(f"values{number}", number, operands, f"({''.join(f'{t}, ' for t in texts)})")
            kinds = ", ".join(
                f'("{s.kind}", "{self.dtypes[s.args[0]]}", "{self._position(s)}")' for s in reduces
            )
            self.lines.append(f'red{number} = p.reduce("red{number}", [{kinds}], values{number})')

    def _operand(self, number: int, stmt: Reduce, position: int) -> str:
        """The text of an operand of a reduction: positions are computed in 32 bits where they fit.

        Halide repeats an update only for the loops that occur in it, so one that is the same all along the
        loop has to mention it.
        """
        name = stmt.args[position]
        text = f"{name}_n" if position == 1 and name in self.narrow else name
        if position or any(self._moves(number, a) for a in stmt.args):
            return text
        return f"at_each({text}, {self.raxes[-1]})"

    def _moves(self, number: int, name: str) -> bool:
        """Whether a value of a section may differ from one point of its loop to the next."""
        if name in self.row_of:
            return True
        loops = {axis_name(a) for a in self.kernel.raxes}
        for stmt in self._slice(number, [name]):
            repeats = stmt.op == "scan" or any(a in self.row_of for a in stmt.args)
            if repeats or any(loops & set(free_axes(index)) for index in indices(stmt)):
                return True
        return False

    def _position(self, stmt: Reduce) -> DType:
        return DType.i32 if len(stmt.args) > 1 and stmt.args[1] in self.narrow else DType.i64

    def _local(self, number: int, stmt: Store) -> None:
        buffer, index = stmt.buffer, stmt.index
        several = len(self.facts.writes(buffer)) > 1
        if (
            several
            or len(stmt.args) > 1
            or stmt.mode != "set"
            or not injective_affine(index, self.kernel.raxes)
        ):
            raise UnsupportedError(
                f"scratch {buffer} is not filled by one plain store", "use another backend for this kernel"
            )
        self._function(f"{buffer}_of", number, stmt.args, tuple_text(stmt.args))
        self.lines.append(f'{buffer} = p.row("{buffer}", {buffer}_of)')
        value = stmt.value
        same = self.dtypes[value] is self.row_buffers[buffer].dtype
        if same and self.facts.definitions[value].section == number:
            # what needs the value from now on reads it there instead of computing it again
            self.row_of.setdefault(value, buffer)
        if any(read.index != index for read in self.facts.reads(buffer)):
            raise UnsupportedError(
                f"scratch {buffer} is read in another order than it is written",
                "use another backend for this kernel",
            )

    def _exported(self, number: int) -> list[str]:
        """Values of an unlooped section that later sections use."""
        values = self.facts.live_out(number)
        return [name for name in values if self.facts.definition(name).op not in _REPEATED]

    # --- functions over one section -------------------------------------------------------------------------

    def _slice(self, number: int, roots: Iterable[str]) -> list[Statement]:
        """Statements of a section that some of its values need, in order."""
        needed = set(roots)
        found: list[Statement] = []
        for stmt in reversed(self.kernel.sections[number].body):
            if not needed & set(stmt.targets) or stmt.op == "reduce" or stmt.targets[0] in self.row_of:
                continue
            found.append(stmt)
            if stmt.op != "scan":
                needed.update(stmt.args)
        return found[::-1]

    def _function(
        self, name: str, number: int, roots: Iterable[str], result: str, memo: bool = False
    ) -> None:
        """A function of a point that computes values of a section and returns `result`."""
        looped = self.kernel.sections[number].looped
        variables = [*self.axes, *(self.raxes if looped else ())]
        roots = list(roots)
        body = self._slice(number, roots)
        inside = {t for s in body for t in s.targets}
        outer = dict.fromkeys(a for s in body if s.op != "scan" for a in s.args if a not in inside)
        outer.update((r, None) for r in roots if r not in inside)
        lines = [*self._imports(list(outer))]
        for stmt in body:
            lines += self._statement(stmt)
        out = self.lines
        if memo:
            out.append("@shared")
        out.append(f"def {name}({', '.join(variables)}):")
        out.extend(f"    {line}" for line in [*lines, f"return {result}"])

    def _imports(self, names: Sequence[str]) -> list[str]:
        """Lines that get values of other sections."""
        lines: list[str] = []
        point = ", ".join(self.axes)
        for name in names:
            if name in self.row_of:
                variables = ", ".join([*self.axes, *self.raxes])
                lines.append(f"{name} = {self.row_of[name]}({variables})")
                continue
            if name in self.reduced:
                section, position, result = self.reduced[name]
                found = f"red{section}({point})[{position}][{result}]"
                if name in self.short:
                    found = f"as_i64({found})"
                lines.append(f"{name} = {found}")
                continue
            section, made = self.facts.definitions[name].section, self.facts.definition(name)
            if made.op in _REPEATED:
                lines += self._statement(made)
                continue
            exported = self._exported(section)
            lines.append(f"{name} = section{section}({point})[{exported.index(name)}]")
        return lines

    def _statement(self, stmt: Statement) -> list[str]:
        args = list(stmt.args)
        if stmt.op == "scan":
            variables = ", ".join([*self.axes, *self.raxes])
            return [
                f"{t} = {self.scanned[t][0]}({variables})[{self.scanned[t][1]}]" for t in stmt.targets if t
            ]
        target = stmt.targets[0]
        match stmt:
            case IndexValue():
                if stmt.target in self.narrow:
                    return [f"{target}_n = index({index_text(stmt.index)})", f"{target} = as_i64({target}_n)"]
                if isinstance(stmt.index, int):
                    return [f'{target} = constant({stmt.index}, "i64")']
                return [f"{target} = {index_text(stmt.index, wide=True)}"]
            case Constant():
                lines = [f"{target} = {constant_text(stmt.value, stmt.dtype)}"]
                if stmt.target in self.narrow:
                    lines.append(f"{target}_n = index({int(stmt.value)})")
                return lines
            case Load():
                return [f"{target} = {self._load(stmt, args)}"]
            case Cast(bitwise=True):
                return [f'{target} = bitcast({args[0]}, "{self.dtypes[stmt.arg]}", "{stmt.dtype}")']
            case Cast():
                source = self.dtypes[stmt.arg]
                if stmt.arg in self.narrow and stmt.dtype.is_float:
                    return [f'{target} = convert({args[0]}_n, "i32", "{_converted_to(stmt.dtype)}")']
                return [f'{target} = convert({args[0]}, "{source}", "{_converted_to(stmt.dtype)}")']
            case Random():
                return [f"{target} = random_{stmt.kind}({', '.join(args)})"]
        if stmt.op in _COMPARISONS and all(a in self.narrow for a in stmt.args):
            args = [f"{a}_n" for a in args]
        if self.kernel.numerics == "fast" and stmt.targets[0] in self.softmaxes.exponentials:
            return [f"{target} = exp_in_softmax({args[0]})"]
        if self.kernel.numerics == "fast" and stmt.targets[0] in self.softmaxes.quotients:
            # the same divisor all along the row
            return [f"{target} = mul({args[0]}, reciprocal({args[1]}))"]
        if stmt.op == "where" and stmt.args[0] in self.indices and self.kernel.device == "cpu":
            return [f"{target} = where_of_index({', '.join(args)})"]
        return [f"{target} = {call_text(stmt.op, args, [self.numbers.get(a) for a in stmt.args])}"]

    def _load(self, stmt: Load, args: Sequence[str]) -> str:
        buffer, index, count, masked = stmt.payload
        if buffer in self.row_buffers:
            return f"{buffer}({', '.join([*self.axes, *self.raxes])})"
        parts = [self._index_text(buffer, index, args[:count], args[count] if masked else "None")]
        if self.transpose >= 0 and _is_transposed(
            stmt, self.kernel.axes[-1], self.kernel.axes[self.transpose]
        ):
            return f'p.transposed("{stmt.target}", {buffer}, {parts[0]}, {", ".join(self.axes)})'
        if not masked:
            return f"{buffer}({parts[0]})"
        parts += args[count : count + 2]
        extent = self.args[buffer].numel
        promised = count and not _subtracts(index)  # an index that is a value alone is promised to be inside
        near = "" if promised or extent is None else f".within({index_text(extent)})"
        return f"{buffer}{near}({', '.join(parts)})"

    def _index_text(self, buffer: str, index: IndexLike, indirect: Sequence[str], mask: str) -> str:
        """The text of an index whose `@k` are values."""
        names: dict[str, str] = {}
        for name, size in indirect_axes(index).items():
            value, extent = indirect[int(name[1:])], index_text(size)
            names[name] = f"at({value}, {extent})"
            if self.checked:
                words = f"is no position in {buffer}, which has 0 to {python_text(size - 1)}"
                names[name] = f'checked_at({value}, {extent}, "{words}", {mask})'
        return index_text(index, names=names)


def _converted_to(dtype: DType) -> str:
    """The library's name of a type that is converted to: torch decides what becomes of numbers that are too
    large."""
    return f"{dtype}_nan" if dtype is DType.f8e4m3 and not e4m3_saturates() else str(dtype)


def tuple_text(names: Iterable[str]) -> str:
    return "(" + "".join(f"{n}, " for n in names) + ")"


def _subtracts(index: IndexLike) -> bool:
    """Whether an index may lie below zero where a mask says to read nothing."""
    return not isinstance(index, int) and (index.const < 0 or any(factor < 0 for _, factor in index.terms))


def _is_transposed(stmt: Load, lane: Index, other: Index) -> bool:
    """Whether neighbours that a load reads lie along another axis than the lanes."""
    if stmt.args or coefficient(stmt.index, axis_name(lane)) in (0, 1, None):
        return False
    return coefficient(stmt.index, axis_name(other)) == 1


def reused_value(facts: KernelFacts, section: Section, columns: int) -> str:
    """The value of a loop that is worth storing until it is needed again, or an empty text; `columns`: how
    many points are computed side by side.
    """
    stores = [access.stmt for access in facts.accesses if access.is_store]
    plain = all(isinstance(s, Store) and s.mode == "set" and len(s.args) == 1 for s in stores)
    here = [s.args[0] for s in section.body if isinstance(s, Store)]
    rows_stored = not facts.written.isdisjoint(facts.row_buffers)
    if not facts.axes or not plain or len(here) != 1 or rows_stored:
        return ""
    steps = columns
    for size in facts.kernel.rsizes:
        steps *= size if isinstance(size, int) else _MOST
    reduced = {a for s in section.body if isinstance(s, Reduce) for a in s.args}
    (value,) = here
    needed = _sources(section, {value})
    if value not in {t for s in _sources(section, reduced) for t in s.targets}:
        return ""
    if any(isinstance(s, Scan) for s in needed) or not any(s.op in MATH for s in needed):
        return ""
    return value if steps * facts.dtypes[value].itemsize <= _MOST else ""


def _sources(section: Section, values: set[str]) -> tuple[Statement, ...]:
    """The statements of a section that values are computed from, reductions included."""
    return backward_slice(section.body, values, leave_out=lambda stmt: False)
