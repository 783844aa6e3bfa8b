"""A kernel as text: a Python program that builds its Halide pipeline from the library's stages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel, KernelArg, Section, Stmt
from polyfuse.ir.rules import result_types
from polyfuse.ir.types import DType
from polyfuse.plugin import Config, Source
from polyfuse.symbolic import (
    Index,
    IndexLike,
    axis_name,
    axis_size,
    coefficient,
    free_axes,
    product,
    python_text,
)
from polyfuse_halide.address import affine, fits_i32, index_text, indirect_axes, safe_name
from polyfuse_halide.again import needed_again
from polyfuse_halide.aliases import shared_outputs
from polyfuse_halide.contracting import contracts
from polyfuse_halide.forward import forwarded
from polyfuse_halide.ops import call_text, constant_text
from polyfuse_halide.pins import Pins, pinned, words
from polyfuse_halide.plan import choose_plan
from polyfuse_halide.shares import shares_of

__all__ = ["Emitter", "KernelText", "Store", "check_sizes", "kernel_text", "tuple_text"]

_LIMIT = 1 << 31
"""Elements of a buffer that Halide's indices reach."""
_REPEATED = ("const", "index", "size")
"""Operations without operands, which each function has for itself."""
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True)
class KernelText:
    """The program of a kernel, what its launch needs to know, and its schedule for people."""

    text: str
    meta: str
    note: str = ""


def kernel_text(
    kernel: Kernel,
    lanes: int,
    config: Config | None = None,
    pins: Pins | None = None,
    checked: bool = False,
) -> KernelText:
    """The program of a kernel, a function named `Source.SYMBOL`; `checked`: one that looks at each place
    before it is read or written.
    """
    check_sizes(kernel)
    plain = forwarded(kernel)
    plan = pinned(kernel, choose_plan(plain, lanes, config), pins or {})
    emitter = Emitter(plain, f"p.schedule = {plan.text()}", plan.turn, extents=checked, checked=checked)
    if plan.kind != "points":
        emitter.side_by_side = plan.lanes * plan.unroll if plan.kind == "columns" else 1
    return replace(emitter.emit(), note=words(kernel, plan))


def check_sizes(kernel: Kernel) -> None:
    """Refuse what Halide cannot index."""
    for arg in kernel.args:
        if isinstance(arg.numel, int) and arg.numel >= _LIMIT:
            raise UnsupportedError(
                f"buffer {arg.name} has {arg.numel} elements and Halide counts in 32 bits",
                "use another backend",
            )


@dataclass(frozen=True)
class Store:
    """One store and where it stands."""

    number: int
    looped: bool
    stmt: Stmt

    @property
    def buffer(self) -> str:
        return str(self.stmt.attrs[0])


class Emitter:
    """The state of writing one kernel; `extents`: inputs are told how many elements they have."""

    def __init__(
        self, kernel: Kernel, schedule: str, turn: int = -1, extents: bool = False, checked: bool = False
    ) -> None:
        self.kernel, self.schedule, self.extents, self.checked = kernel, schedule, extents, checked
        self.args: dict[str, KernelArg] = {a.name: a for a in kernel.args}
        self.locals = {b.name: b for b in kernel.locals}
        self.axes = [safe_name(axis_name(a)) for a in kernel.axes]
        self.raxes = [safe_name(axis_name(a)) for a in kernel.raxes]
        self.lines: list[str] = []
        self.dtypes: dict[str, DType] = {}
        self.home: dict[str, int] = {}
        self.reduced: dict[str, tuple[int, int, int]] = {}
        self.scanned: dict[str, tuple[str, int]] = {}
        self.narrow: set[str] = set()
        self.short: set[str] = set()
        self.loaded: list[str] = []
        self.kept: dict[str, str] = {}
        self.shares = shares_of(kernel)
        self.side_by_side = 0
        self.contracting = kernel.device == "cpu" and contracts(kernel)
        self.turn = turn
        self.outputs: list[dict[str, object]] = []
        self.numbers: dict[str, float] = {}
        self._study()

    def _study(self) -> None:
        for number, section in enumerate(self.kernel.sections):
            place = 0
            for stmt in section.body:
                types = self._types(stmt)
                for k, target in enumerate(stmt.targets):
                    self.dtypes[target] = types[k]
                    self.home[target] = number
                    if stmt.op == "reduce":
                        self.reduced[target] = (number, place, k)
                        if k == 1 and len(stmt.args) > 1 and stmt.args[1] in self.narrow:
                            self.short.add(target)
                    elif stmt.op == "scan":
                        self.scanned[target] = (f"scan{number}_{place}", k)
                if stmt.op in ("reduce", "scan"):
                    place += 1
                if stmt.op == "index" and fits_i32(stmt.attrs[0]):
                    self.narrow.add(stmt.targets[0])
                if stmt.op == "const" and stmt.dtype.is_float:
                    self.numbers[stmt.targets[0]] = float(stmt.attrs[0])
                if stmt.op == "const" and stmt.dtype is DType.i64 and abs(stmt.attrs[0]) < _LIMIT:
                    self.narrow.add(stmt.targets[0])

    def _types(self, stmt: Stmt) -> tuple[DType, ...]:
        if stmt.op in ("reduce", "scan"):
            found = result_types(stmt.op, stmt.attrs[0], tuple(self.dtypes[a] for a in stmt.args))
            if not isinstance(found, str):
                return tuple(found)
        return (stmt.dtype,) * max(1, len(stmt.targets))

    # --- the program ----------------------------------------------------------------------------------------

    def emit(self) -> KernelText:
        kernel, out = self.kernel, self.lines
        stores = [
            Store(number, section.looped, stmt)
            for number, section in enumerate(kernel.sections)
            for stmt in section.body
            if stmt.op == "store" and stmt.attrs[0] not in self.locals
        ]
        self._check_order(stores)
        out.append(self.schedule)
        for arg in kernel.args:
            if arg.kind == "size":
                out.append(f'{safe_name(arg.name)} = p.size("{safe_name(arg.name)}")')
        read = {s.attrs[0] for part in kernel.sections for s in part.body if s.op == "load"} - set(
            self.locals
        )
        for arg in kernel.args:
            if arg.name in read:
                extent = f", {_extent(arg)}" if self.extents else ""
                out.append(f'{safe_name(arg.name)} = p.input("{safe_name(arg.name)}", "{arg.dtype}"{extent})')
                self.loaded.append(arg.name)
        for variable in kernel.axes:
            out.append(f'p.axis("{safe_name(axis_name(variable))}", {index_text(axis_size(variable))})')
        for variable in kernel.raxes:
            out.append(f'p.loop("{safe_name(axis_name(variable))}", {index_text(axis_size(variable))})')
        for number, section in enumerate(kernel.sections):
            self._section(number, section)
        self._stores(stores)
        text = f"def {Source.SYMBOL}(p):\n" + "".join(f"    {line}\n" for line in out)
        return KernelText(text, self._meta())

    def _section(self, number: int, section: Section) -> None:
        if not section.looped:
            wanted = self._exported(number, section)
            if wanted:
                names = ", ".join(map(safe_name, wanted))
                self._function(f"section{number}", number, wanted, f"({names},)", memo=True)
            return
        place = 0
        reduces: list[Stmt] = []
        for stmt in section.body:
            if stmt.op == "reduce":
                reduces.append(stmt)
                place += 1
            elif stmt.op == "scan":
                name = f"scan{number}_{place}"
                self._function(f"{name}_of", number, stmt.args, tuple_text(stmt.args))
                self.lines.append(f'{name} = p.scan("{name}", "{stmt.attrs[0]}", {name}_of)')
                place += 1
            elif stmt.op == "store" and stmt.attrs[0] in self.locals:
                self._local(number, stmt)
        again = needed_again(self.kernel, section, self.side_by_side) if reduces and self.side_by_side else ""
        if again:
            self._function(f"again{number}_of", number, [again], tuple_text([again]))
            self.lines.append(f'again{number} = p.row("again{number}", again{number}_of)')
            self.kept.setdefault(again, f"again{number}")
        if reduces:
            operands = [a for s in reduces for a in s.args]
            texts = [self._operand(s, k) for s in reduces for k in range(len(s.args))]
            self._function(f"values{number}", number, operands, f"({''.join(f'{t}, ' for t in texts)})")
            kinds = ", ".join(
                f'("{s.attrs[0]}", "{self.dtypes[s.args[0]]}", "{self._position(s)}")' for s in reduces
            )
            self.lines.append(f'red{number} = p.reduce("red{number}", [{kinds}], values{number})')

    def _operand(self, stmt: Stmt, place: int) -> str:
        """The text of an operand of a reduction: positions are kept in 32 bits where they fit."""
        name = stmt.args[place]
        return f"{safe_name(name)}_n" if place == 1 and name in self.narrow else safe_name(name)

    def _position(self, stmt: Stmt) -> DType:
        return DType.i32 if len(stmt.args) > 1 and stmt.args[1] in self.narrow else DType.i64

    def _local(self, number: int, stmt: Stmt) -> None:
        buffer, index, count, mode, masked = stmt.attrs
        stores = [
            s for part in self.kernel.sections for s in part.body if s.op == "store" and s.attrs[0] == buffer
        ]
        found = affine(index, self.kernel.raxes)
        if len(stores) > 1 or count or mode != "set" or masked or found is None:
            raise UnsupportedError(
                f"scratch {buffer} is not filled by one plain store", "use another backend for this kernel"
            )
        name = safe_name(buffer)
        self._function(f"{name}_of", number, stmt.args, tuple_text(stmt.args))
        self.lines.append(f'{name} = p.row("{name}", {name}_of)')
        value = stmt.args[0]
        if self.home[value] == number and self.dtypes[value] is self.locals[buffer].dtype:
            # what needs the value from now on reads it there instead of computing it again
            self.kept.setdefault(value, name)
        for part in self.kernel.sections:
            for other in part.body:
                if other.op == "load" and other.attrs[0] == buffer and other.attrs[1] != index:
                    raise UnsupportedError(
                        f"scratch {buffer} is read in another order than it is written",
                        "use another backend for this kernel",
                    )

    def _exported(self, number: int, section: Section) -> list[str]:
        """Values of an unlooped section that later sections use."""
        used: dict[str, None] = {}
        for other, part in enumerate(self.kernel.sections):
            for stmt in part.body:
                if other != number:
                    used.update((a, None) for a in stmt.args if self.home[a] == number)
        return [t for s in section.body for t in s.targets if t in used and s.op not in _REPEATED]

    # --- functions over one section -------------------------------------------------------------------------

    def _slice(self, number: int, roots: Iterable[str]) -> list[Stmt]:
        """Statements of a section that some of its values need, in order."""
        needed = set(roots)
        found: list[Stmt] = []
        for stmt in reversed(self.kernel.sections[number].body):
            if not needed & set(stmt.targets) or stmt.op == "reduce" or stmt.targets[0] in self.kept:
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
        places = [*self.axes, *(self.raxes if looped else ())]
        roots = list(roots)
        body = self._slice(number, roots)
        inside = {t for s in body for t in s.targets}
        outer = dict.fromkeys(a for s in body if s.op != "scan" for a in s.args if a not in inside)
        outer.update((r, None) for r in roots if r not in inside)
        lines = [*self._imports(number, list(outer))]
        for stmt in body:
            lines += self._statement(stmt)
        out = self.lines
        if memo:
            out.append("@shared")
        out.append(f"def {name}({', '.join(places)}):")
        out.extend(f"    {line}" for line in [*lines, f"return {result}"])

    def _imports(self, number: int, names: Sequence[str]) -> list[str]:
        """Lines that get values of other sections."""
        lines: list[str] = []
        point = ", ".join(self.axes)
        for name in names:
            if name in self.kept:
                places = ", ".join([*self.axes, *self.raxes])
                lines.append(f"{safe_name(name)} = {self.kept[name]}({places})")
                continue
            if name in self.reduced:
                section, place, result = self.reduced[name]
                found = f"red{section}({point})[{place}][{result}]"
                if name in self.short:
                    found = f"as_i64({found})"
                lines.append(f"{safe_name(name)} = {found}")
                continue
            section = self.home[name]
            made = next((s for s in self.kernel.sections[section].body if name in s.targets), None)
            if made is not None and made.op in _REPEATED:
                lines += self._statement(made)
                continue
            exported = self._exported(section, self.kernel.sections[section])
            lines.append(f"{safe_name(name)} = section{section}({point})[{exported.index(name)}]")
        return lines

    def _statement(self, stmt: Stmt) -> list[str]:
        args = [safe_name(a) for a in stmt.args]
        if stmt.op == "scan":
            places = ", ".join([*self.axes, *self.raxes])
            return [
                f"{safe_name(t)} = {self.scanned[t][0]}({places})[{self.scanned[t][1]}]"
                for t in stmt.targets
                if t
            ]
        target = safe_name(stmt.targets[0])
        if stmt.op in ("index", "size"):
            index = stmt.attrs[0]
            if stmt.targets[0] in self.narrow:
                return [f"{target}_n = index({index_text(index)})", f"{target} = as_i64({target}_n)"]
            if isinstance(index, int):
                return [f'{target} = constant({index}, "i64")']
            return [f"{target} = {index_text(index, wide=True)}"]
        if stmt.op == "const":
            lines = [f"{target} = {constant_text(stmt.attrs[0], stmt.dtype)}"]
            if stmt.targets[0] in self.narrow:
                lines.append(f"{target}_n = index({int(stmt.attrs[0])})")
            return lines
        if stmt.op == "load":
            return [f"{target} = {self._load(stmt, args)}"]
        if stmt.op == "cast":
            source = self.dtypes[stmt.args[0]]
            if stmt.args[0] in self.narrow and stmt.dtype.is_float:
                return [f'{target} = convert({args[0]}_n, "i32", "{stmt.dtype}")']
            return [f'{target} = convert({args[0]}, "{source}", "{stmt.dtype}")']
        if stmt.op == "bitcast":
            return [f'{target} = bitcast({args[0]}, "{self.dtypes[stmt.args[0]]}", "{stmt.dtype}")']
        if stmt.op == "rand":
            return [f"{target} = random_{stmt.attrs[0]}({', '.join(args)})"]
        if stmt.op in _COMPARISONS and all(a in self.narrow for a in stmt.args):
            args = [f"{a}_n" for a in args]
        if self.kernel.numerics == "fast" and stmt.targets[0] in self.shares.summed:
            return [f"{target} = exp_share({args[0]})"]
        if self.kernel.numerics == "fast" and stmt.targets[0] in self.shares.parts:
            # the same divisor all along the row
            return [f"{target} = mul({args[0]}, reciprocal({args[1]}))"]
        return [f"{target} = {call_text(stmt.op, args, [self.numbers.get(a) for a in stmt.args])}"]

    def _load(self, stmt: Stmt, args: Sequence[str]) -> str:
        buffer, index, count, masked = stmt.attrs
        if buffer in self.locals:
            return f"{safe_name(buffer)}({', '.join([*self.axes, *self.raxes])})"
        parts = [self._place(buffer, index, args[:count], args[count] if masked else "None")]
        if self.turn >= 0 and _is_turned(stmt, self.kernel.axes[-1], self.kernel.axes[self.turn]):
            return f'p.turned("{stmt.targets[0]}", {safe_name(buffer)}, {parts[0]}, {", ".join(self.axes)})'
        if not masked:
            return f"{safe_name(buffer)}({parts[0]})"
        parts += args[count : count + 2]
        extent = self.args[buffer].numel
        near = "" if count or extent is None else f".within({index_text(extent)})"
        return f"{safe_name(buffer)}{near}({', '.join(parts)})"

    def _place(self, buffer: str, index: IndexLike, indirect: Sequence[str], mask: str) -> str:
        """The text of an index whose `@k` are values."""
        text = index_text(index)
        if not indirect or isinstance(index, int):
            return text
        for variable in indirect_axes(index):
            extent, number = index_text(axis_size(variable)), int(axis_name(variable)[1:])
            found = f"at({indirect[number]}, {extent})"
            if self.checked:
                words = f"is no position in {buffer}, which has 0 to {python_text(axis_size(variable) - 1)}"
                found = f'checked_at({indirect[number]}, {extent}, "{words}", {mask})'
            text = text.replace(safe_name(axis_name(variable)), found)
        return text

    # --- stores ---------------------------------------------------------------------------------------------

    def _check_order(self, stores: Sequence[Store]) -> None:
        """Stages run one after the other: what one stores, no later one may still read as it was."""
        written: dict[str, list[Store]] = {}
        for store in stores:
            written.setdefault(store.buffer, []).append(store)
        stages = {s.number if s.looped else -1 for s in stores}
        for number, section in enumerate(self.kernel.sections):
            for stmt in section.body:
                for store in written.get(stmt.attrs[0], ()) if stmt.op == "load" else ():
                    safe = (
                        len(stages) == 1
                        and store.number >= number
                        and len(written[store.buffer]) == 1
                        and store.stmt.attrs[3] == "set"
                        and store.stmt.attrs[1] == stmt.attrs[1]
                        and section.looped == store.looped
                    )
                    if not safe:
                        raise UnsupportedError(
                            f"buffer {store.buffer} is read and written in several stages",
                            "use another backend for this kernel",
                        )
        for several in written.values():
            first = several[0]
            if len(several) > 1 and any(
                (s.number, s.looped) != (first.number, first.looped) for s in several
            ):
                raise UnsupportedError(
                    f"buffer {first.buffer} is written in several stages",
                    "use another backend for this kernel",
                )

    def _stores(self, stores: Sequence[Store]) -> None:
        plain: dict[int, list[tuple[Store, IndexLike, tuple[IndexLike, ...]]]] = {}
        odd: list[Store] = []
        for store in stores:
            _, index, count, mode, masked = store.stmt.attrs
            space = (*self.kernel.axes, *(self.kernel.raxes if store.looped else ()))
            found = None if count or mode != "set" or masked else affine(index, space)
            if found is None:
                odd.append(store)
            else:
                plain.setdefault(store.number if store.looped else -1, []).append((store, *found))
        self._mind_aliases(stores, odd, len(plain))
        # what is stored at computed places first: it only reads what plain stores may overwrite
        for k, store in enumerate(odd):
            self._scatter(f"scatter{k}", store)
        for key, group in sorted(plain.items()):
            self._plain_stage(f"out{key}" if key >= 0 else "points", group)

    def _mind_aliases(self, stores: Sequence[Store], odd: Sequence[Store], stages: int) -> None:
        """Where an output may lie over an input, everything is computed before anything is stored."""
        risky = shared_outputs(self.kernel)
        if not risky or len(stores) == 1:
            return
        apart = bool(odd) or not self.axes
        if any(store.buffer in risky for store in odd) or (apart and stages > 1):
            raise UnsupportedError(
                "an output may lie where an input does, and several stages store", "use another backend"
            )
        self.lines.append("p.careful = True")

    def _plain_stage(
        self, name: str, group: Sequence[tuple[Store, IndexLike, tuple[IndexLike, ...]]]
    ) -> None:
        looped = group[0][0].looped
        places = [*self.axes, *(self.raxes if looped else ())]
        calls: list[str] = []
        for number in sorted({store.number for store, _, _ in group}):
            roots = list(dict.fromkeys(s.stmt.args[0] for s, _, _ in group if s.number == number))
            self._function(f"{name}_of{number}", number, roots, tuple_text(roots))
            calls += [
                f"{name}_of{number}({', '.join(places)})[{roots.index(s.stmt.args[0])}]"
                for s, _, _ in group
                if s.number == number
            ]
        ordered = sorted(group, key=lambda item: item[0].number)
        strides = ", ".join(
            "[" + ", ".join(index_text(step) for step in steps) + "]" for _, _, steps in ordered
        )
        self.lines.append(f"def {name}_all({', '.join(places)}):")
        self.lines.append(f"    return ({''.join(call + ', ' for call in calls)})")
        self.lines.append(f'{name} = p.store("{name}", {looped}, [{strides}], {name}_all)')
        extents = [axis_size(a) for a in self._space(group[0][0])]
        for store, offset, steps in ordered:
            self._output(store.buffer, offset, list(zip(extents, steps)))

    def _scatter(self, name: str, store: Store) -> None:
        stmt = store.stmt
        _, index, count, mode, masked = stmt.attrs
        args = [safe_name(a) for a in stmt.args]
        mask = args[-1] if masked else "None"
        place = self._place(store.buffer, index, args[1 : 1 + count], mask)
        self._function(f"{name}_of", store.number, stmt.args, f"({place}, {args[0]}, {mask})")
        lane = self._scatter_lane(store)
        arg = self.args[store.buffer]
        extent = _extent(arg)
        disjoint = mode == "set" and (
            count > 0 or not masked or affine(index, self._space(store)) is not None
        )
        self.lines.append(
            f'p.scatter("{name}", "{arg.dtype}", {store.looped}, "{mode}", {extent}, {name}_of, '
            f'lane="{lane}", disjoint={disjoint})'
        )
        self._output(store.buffer, 0, [(arg.numel if arg.numel is not None else 1, 1)])

    def _space(self, store: Store) -> tuple[Index, ...]:
        return (*self.kernel.axes, *(self.kernel.raxes if store.looped else ()))

    def _scatter_lane(self, store: Store) -> str:
        """An axis along which places differ whatever the indirect values are."""
        index = store.stmt.attrs[1]
        count = store.stmt.attrs[2]
        for variable in reversed(self._space(store)):
            name = axis_name(variable)
            step = coefficient(index, name)
            if not isinstance(step, int) or step == 0:
                continue
            if not self._depends(store, store.stmt.args[1 : 1 + count], name):
                return safe_name(name)
        return ""

    def _depends(self, store: Store, names: Iterable[str], axis: str) -> bool:
        """Whether values change along an axis."""
        waiting = set(names)
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            seen.add(name)
            for part in self.kernel.sections:
                for stmt in part.body:
                    if name not in stmt.targets:
                        continue
                    where = stmt.attrs[1] if stmt.op == "load" else stmt.attrs[0] if stmt.op == "index" else 0
                    if axis in free_axes(where) or stmt.op == "scan":
                        return True
                    waiting.update(a for a in stmt.args if a not in seen)
        return False

    # --- what the launch needs ------------------------------------------------------------------------------

    def _output(self, name: str, offset: IndexLike, dims: Sequence[tuple[IndexLike, IndexLike]]) -> None:
        """Note an output of the pipeline: where it begins, and its extents and strides as Halide counts,
        innermost first.
        """
        self.outputs.append(
            {
                "operand": [arg.name for arg in self.kernel.args].index(name),
                "width": self.args[name].dtype.itemsize,
                "offset": python_text(offset),
                "dims": [[python_text(extent), python_text(step)] for extent, step in reversed(dims)],
            }
        )

    def _meta(self) -> str:
        """Operands of the compiled function in its order: inputs, sizes, outputs."""
        position = {arg.name: k for k, arg in enumerate(self.kernel.args)}
        sizes = [arg.name for arg in self.kernel.args if arg.kind == "size"]
        dynamic = [
            python_text(arg.numel)
            for arg in self.kernel.args
            if arg.numel is not None and not isinstance(arg.numel, int)
        ]
        points = product(self.kernel.sizes)
        checks: dict[str, object] = {"contracts": True} if self.contracting else {}
        if self.checked:
            order = [*self.loaded, *(self.kernel.args[int(str(o["operand"]))].name for o in self.outputs)]
            extents = [self.args[name].numel for name in self.loaded]
            checks["checks"] = {
                "types": [str(self.args[name].dtype) for name in order],
                "extents": [python_text(1 if extent is None else extent) for extent in extents],
            }
        return json.dumps(
            {
                **checks,
                "count": len(self.kernel.args),
                "buffers": [k for k, arg in enumerate(self.kernel.args) if arg.kind != "size"],
                "inputs": [position[name] for name in self.loaded],
                "sizes": [[position[name], name] for name in sizes],
                "outputs": self.outputs,
                "limits": dynamic,
                "empty": points == 0 or not self.outputs,
            },
            sort_keys=True,
        )


def tuple_text(names: Iterable[str]) -> str:
    return "(" + "".join(f"{safe_name(n)}, " for n in names) + ")"


def _extent(arg: KernelArg) -> str:
    """The text of a buffer's number of elements."""
    return index_text(arg.numel if arg.numel is not None else 1)


def _is_turned(stmt: Stmt, lane: Index, other: Index) -> bool:
    """Whether neighbours that a load reads lie along another axis than the lanes."""
    _, index, count, masked = stmt.attrs
    if count or masked or coefficient(index, axis_name(lane)) in (0, 1, None):
        return False
    return coefficient(index, axis_name(other)) == 1
