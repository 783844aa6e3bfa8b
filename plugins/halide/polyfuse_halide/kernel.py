"""A kernel as text: a Python program that builds its Halide pipeline from the library's stages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel, KernelArg, Stmt
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
from polyfuse_halide.address import affine, index_text, safe_name
from polyfuse_halide.aliases import shared_outputs
from polyfuse_halide.contracting import contracts
from polyfuse_halide.forward import forwarded
from polyfuse_halide.pins import Pins, pinned, words
from polyfuse_halide.plan import choose_plan
from polyfuse_halide.values import LIMIT, ValueEmitter, tuple_text

__all__ = ["Emitter", "KernelText", "Store", "check_sizes", "kernel_text"]


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
class Store:
    """One store and where it stands."""

    number: int
    looped: bool
    stmt: Stmt

    @property
    def buffer(self) -> str:
        return str(self.stmt.attrs[0])


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


def _extent(arg: KernelArg) -> str:
    """The text of a buffer's number of elements."""
    return index_text(arg.numel if arg.numel is not None else 1)
