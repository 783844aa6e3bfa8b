"""A kernel as text: a Python program that builds its Halide pipeline from the library's stages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.ir.statements import IndexValue, Load, Store
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
from polyfuse_halide.codegen.address import affine, index_text, safe_name
from polyfuse_halide.codegen.contracting import contracts
from polyfuse_halide.codegen.forward import forwarded
from polyfuse_halide.codegen.values import LIMIT, ValueEmitter, tuple_text
from polyfuse_halide.schedules.pins import Pins, pinned, words
from polyfuse_halide.schedules.plan import choose_plan

__all__ = ["Emitter", "KernelText", "PlacedStore", "check_sizes", "kernel_text"]


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
        if isinstance(arg.numel, int) and arg.numel >= LIMIT:
            raise UnsupportedError(
                f"buffer {arg.name} has {arg.numel} elements and Halide counts in 32 bits",
                "use another backend",
            )


@dataclass(frozen=True)
class PlacedStore:
    """One store and where it stands."""

    number: int
    looped: bool
    stmt: Store

    @property
    def buffer(self) -> str:
        return self.stmt.buffer


class Emitter(ValueEmitter):
    """The state of writing one kernel: its values, then where they are stored, and what launches must know.

    Args:
        schedule: the line that says it.
        extents: inputs are told how many elements they have.
    """

    def __init__(
        self, kernel: Kernel, schedule: str, turn: int = -1, extents: bool = False, checked: bool = False
    ) -> None:
        super().__init__(kernel, turn, checked)
        self.schedule, self.extents = schedule, extents
        self.contracting = kernel.device == "cpu" and contracts(kernel)
        self.loaded: list[str] = []
        self.outputs: list[dict[str, object]] = []

    # --- the program ----------------------------------------------------------------------------------------

    def _backwards(self, index: IndexLike) -> bool:
        """Whether neighbours are read in the opposite order."""
        steps = [coefficient(index, axis_name(a)) for a in (*self.kernel.axes, *self.kernel.raxes)]
        return any(isinstance(step, int) and step < 0 for step in steps)

    def emit(self) -> KernelText:
        kernel, out = self.kernel, self.lines
        stores = [
            PlacedStore(number, section.looped, stmt)
            for number, section in enumerate(kernel.sections)
            for stmt in section.body
            if isinstance(stmt, Store) and stmt.buffer not in self.row_buffers
        ]
        self._check_order(stores)
        out.append(self.schedule)
        for arg in kernel.args:
            if arg.kind == "size":
                out.append(f'{safe_name(arg.name)} = p.size("{safe_name(arg.name)}")')
        loads = [s for part in kernel.sections for s in part.body if isinstance(s, Load)]
        read = {s.buffer for s in loads} - set(self.row_buffers)
        turned = {s.buffer for s in loads if self._backwards(s.index)}
        for arg in kernel.args:
            if arg.name in read:
                extent = f", {_extent(arg)}" if self.extents else ""
                extent += ", backwards=True" if arg.name in turned else ""
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

    # --- stores ---------------------------------------------------------------------------------------------

    def _check_order(self, stores: Sequence[PlacedStore]) -> None:
        """Stages run one after the other: what one stores, no later one may still read as it was."""
        written: dict[str, list[PlacedStore]] = {}
        for store in stores:
            written.setdefault(store.buffer, []).append(store)
        stages = {s.number if s.looped else -1 for s in stores}
        for number, section in enumerate(self.kernel.sections):
            for stmt in section.body:
                if not isinstance(stmt, Load):
                    continue
                for store in written.get(stmt.buffer, ()):
                    safe = (
                        # of a point's own element, everything is computed before anything is stored
                        (len(stages) == 1 or not store.looped)
                        and store.number >= number
                        and len(written[store.buffer]) == 1
                        and store.stmt.mode == "set"
                        and store.stmt.index == stmt.index
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

    def _stores(self, stores: Sequence[PlacedStore]) -> None:
        plain: dict[int, list[tuple[PlacedStore, IndexLike, tuple[IndexLike, ...]]]] = {}
        odd: list[PlacedStore] = []
        for store in stores:
            plainly = store.stmt.mode == "set" and len(store.stmt.args) == 1
            found = affine(store.stmt.index, self._space(store)) if plainly else None
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

    def _mind_aliases(self, stores: Sequence[PlacedStore], odd: Sequence[PlacedStore], stages: int) -> None:
        """Where an output is an input, or may lie over one, all is computed before anything is stored."""
        read = {s.buffer for part in self.kernel.sections for s in part.body if isinstance(s, Load)}
        risky = {alias.output for alias in self.kernel.aliases}
        risky |= read & {store.buffer for store in stores}
        if not risky or len(stores) == 1:
            return
        apart = bool(odd) or not self.axes
        if any(store.buffer in risky for store in odd) or (apart and stages > 1):
            raise UnsupportedError(
                "an output may lie where an input does, and several stages store", "use another backend"
            )
        self.lines.append("p.careful = True")

    def _plain_stage(
        self, name: str, group: Sequence[tuple[PlacedStore, IndexLike, tuple[IndexLike, ...]]]
    ) -> None:
        looped = group[0][0].looped
        places = [*self.axes, *(self.raxes if looped else ())]
        calls: list[str] = []
        for number in sorted({store.number for store, _, _ in group}):
            roots = list(dict.fromkeys(s.stmt.value for s, _, _ in group if s.number == number))
            self._function(f"{name}_of{number}", number, roots, tuple_text(roots))
            calls += [
                f"{name}_of{number}({', '.join(places)})[{roots.index(s.stmt.value)}]"
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

    def _scatter(self, name: str, store: PlacedStore) -> None:
        stmt = store.stmt
        mode = "set" if stmt.mode == CHECK_MODE else stmt.mode  # any one of what collides
        args = [safe_name(a) for a in stmt.args]
        mask = "None" if stmt.mask is None else args[-1]
        place = self._place(store.buffer, stmt.index, args[1 : 1 + len(stmt.indirect)], mask)
        self._function(f"{name}_of", store.number, stmt.args, f"({place}, {args[0]}, {mask})")
        lane = self._scatter_lane(store)
        arg = self.args[store.buffer]
        extent = _extent(arg)
        disjoint = mode == "set" and (
            bool(stmt.indirect) or stmt.mask is None or affine(stmt.index, self._space(store)) is not None
        )
        self.lines.append(
            f'p.scatter("{name}", "{arg.dtype}", {store.looped}, "{mode}", {extent}, {name}_of, '
            f'lane="{lane}", disjoint={disjoint})'
        )
        self._output(store.buffer, 0, [(arg.numel if arg.numel is not None else 1, 1)])

    def _space(self, store: PlacedStore) -> tuple[Index, ...]:
        return (*self.kernel.axes, *(self.kernel.raxes if store.looped else ()))

    def _scatter_lane(self, store: PlacedStore) -> str:
        """An axis along which places differ whatever the indirect values are."""
        index = store.stmt.index
        for variable in reversed(self._space(store)):
            name = axis_name(variable)
            step = coefficient(index, name)
            if not isinstance(step, int) or step == 0:
                continue
            if not self._depends(store, store.stmt.indirect, name):
                return safe_name(name)
        return ""

    def _depends(self, store: PlacedStore, names: Iterable[str], axis: str) -> bool:
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
                    where = stmt.index if isinstance(stmt, (Load, IndexValue)) else 0
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


def _extent(arg: KernelArg) -> str:
    """The text of a buffer's number of elements."""
    return index_text(arg.numel if arg.numel is not None else 1)
