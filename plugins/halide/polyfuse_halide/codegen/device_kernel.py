"""A kernel for a device as text: one launch for everything at plain places, one for each scatter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Load
from polyfuse.plugin import Config
from polyfuse.symbolic import IndexLike, axis, axis_name, axis_size, coefficient
from polyfuse_halide.codegen.address import affine, index_text
from polyfuse_halide.codegen.device_plan import DevicePlan, choose_device_plan
from polyfuse_halide.codegen.forward import forwarded
from polyfuse_halide.codegen.kernel import Emitter, KernelText, PlacedStore, check_sizes
from polyfuse_halide.codegen.values import tuple_text
from polyfuse_halide.schedules.pins import Pins, pinned, words

__all__ = ["device_kernel_text"]

_Placed = tuple[PlacedStore, IndexLike, tuple[IndexLike, ...]]


def device_kernel_text(
    kernel: Kernel, processors: int, config: Config | None = None, pins: Pins | None = None
) -> KernelText:
    """The program of a kernel for a device with so many processors."""
    check_sizes(kernel)
    plain = forwarded(kernel)
    if not plain.axes:
        # blocks are counted along an axis
        hints = plain.size_hints and (1, *plain.size_hints)
        plain = replace(plain, axes=(axis("one0", 1),), size_hints=hints)
    plan = choose_device_plan(plain, processors, config)
    plan = pinned(kernel, plan, pins or {})
    return replace(_DeviceEmitter(plain, plan).emit(), note=words(kernel, plan))


class _DeviceEmitter(Emitter):
    """The state of writing one kernel for a device."""

    def __init__(self, kernel: Kernel, plan: DevicePlan) -> None:
        super().__init__(kernel, f"p.grid = {plan.text()}")
        self.plan = plan
        self.tiles: dict[str, str] = {}
        self.loose = False

    def _load(self, stmt: Load, args: Sequence[str]) -> str:
        """A load along the turned axis is one from a tile."""
        found = super()._load(stmt, args)
        if self.plan.turn < 0 or stmt.args or stmt.buffer in self.row_buffers:
            return found
        steps = [coefficient(stmt.index, axis_name(self.kernel.axes[k])) for k in (self.plan.turn, -1)]
        if steps[0] != 1 or steps[1] in (0, 1, None):
            return found
        name = self.tiles.setdefault(found, f"tile{len(self.tiles)}")
        return f"{name}({', '.join(self.axes)})"

    def _stores(self, stores: Sequence[PlacedStore]) -> None:
        plain: list[_Placed] = []
        odd: list[PlacedStore] = []
        for store in stores:
            plainly = store.stmt.mode == "set" and len(store.stmt.args) == 1
            found = affine(store.stmt.index, self._space(store)) if plainly else None
            if found is None:
                odd.append(store)
            else:
                plain.append((store, *found))
        self._mind_aliases(stores, odd, 1 if plain else 0)
        # what is stored at computed places first: it only reads what plain stores may overwrite
        for k, store in enumerate(odd):
            self._scatter(f"scatter{k}", store)
        if plain:
            self._stage(plain)

    def _stage(self, group: Sequence[_Placed]) -> None:
        """One launch: values known before the loops are stored in them besides, each time at one place."""
        looped = any(store.looped for store, _, _ in group)
        raxes = self.kernel.raxes if looped else ()
        places = [*self.axes, *(self.raxes if looped else ())]
        calls: list[str] = []
        ordered = sorted(group, key=lambda item: item[0].number)
        for number in sorted({store.number for store, _, _ in group}):
            within = [s for s, _, _ in ordered if s.number == number]
            roots = list(dict.fromkeys(s.stmt.value for s in within))
            name, point = f"out_of{number}", places
            self._function(name, number, roots, tuple_text(roots))
            if looped and not within[0].looped:
                point = list(self.axes)
                self.lines.append(f'once{number} = p.once("once{number}", {name})')
                name = f"once{number}"
            calls += [f"{name}({', '.join(point)})[{roots.index(s.stmt.value)}]" for s in within]
        steps_of = [(*steps, *((0,) * len(raxes) if not store.looped else ())) for store, _, steps in ordered]
        strides = ", ".join("[" + ", ".join(index_text(step) for step in steps) + "]" for steps in steps_of)
        self.lines.append(f"def out_all({', '.join(places)}):")
        self.lines.append(f"    return ({''.join(call + ', ' for call in calls)})")
        for text, name in self.tiles.items():
            self.lines.append(f'{name} = p.tile("{name}", lambda {", ".join(self.axes)}: ({text}, ))')
        self.lines.append(f'p.store("out", {looped}, [{strides}], out_all)')
        extents = [axis_size(a) for a in (*self.kernel.axes, *raxes)]
        for (store, offset, _), steps in zip(ordered, steps_of, strict=True):
            self._output(store.buffer, offset, list(zip(extents, steps, strict=True)))

    def _scatter(self, name: str, store: PlacedStore) -> None:
        arg, mode = self.args[store.buffer], store.stmt.mode
        if mode != "set":
            # other combinations become loops that may look at an outdated copy of the memory
            if mode != "add" or arg.dtype.itemsize < 4:
                raise UnsupportedError(
                    f"Halide has no atomic {mode} on {arg.dtype} on devices", "use another backend"
                )
            if arg.dtype.is_float:
                if self.kernel.raxes:
                    raise UnsupportedError(
                        f"Halide has no atomic {mode} on {arg.dtype} on devices beside loops",
                        "use another backend",
                    )
                if not self.loose:
                    self.lines.append("p.loose = True")
                self.loose = True
        super()._scatter(name, store)

    def _meta(self) -> str:
        return json.dumps(
            {**json.loads(super()._meta()), "device": self.kernel.device, "loose": self.loose}, sort_keys=True
        )
