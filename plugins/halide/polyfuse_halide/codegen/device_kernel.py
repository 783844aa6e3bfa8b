"""A kernel for a device as text: one launch for everything at affine indices, one for each scatter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Load
from polyfuse.kit import Access
from polyfuse.plugin import Config
from polyfuse.symbolic import axis, axis_name, axis_size, coefficient
from polyfuse_halide.codegen.device_plan import DevicePlan, choose_device_plan
from polyfuse_halide.codegen.forward import forwarded, with_plain_names
from polyfuse_halide.codegen.kernel import Emitter, IndexedStore, KernelText, check_sizes
from polyfuse_halide.codegen.values import tuple_text
from polyfuse_halide.schedules.pins import Pins, pinned, words


def device_kernel_text(
    kernel: Kernel, multiprocessors: int, config: Config | None = None, pins: Pins | None = None
) -> KernelText:
    """The program of a kernel for a device with so many multiprocessors."""
    check_sizes(kernel)
    plain = with_plain_names(forwarded(kernel))
    if not plain.axes:
        # blocks are counted along an axis
        hints = plain.size_hints and (1, *plain.size_hints)
        plain = replace(plain, axes=(axis("one0", 1),), size_hints=hints)
    plan = choose_device_plan(plain, multiprocessors, config)
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
        """A load along the transposed axis is one from a tile."""
        found = super()._load(stmt, args)
        if self.plan.transpose < 0 or stmt.args or stmt.buffer in self.row_buffers:
            return found
        steps = [coefficient(stmt.index, axis_name(self.kernel.axes[k])) for k in (self.plan.transpose, -1)]
        if steps[0] != 1 or steps[1] in (0, 1, None):
            return found
        name = self.tiles.setdefault(found, f"tile{len(self.tiles)}")
        return f"{name}({', '.join(self.axes)})"

    def _stores(self, stores: Sequence[Access]) -> None:
        indexed, scatters = self._by_index(stores)
        self._mind_aliases(stores, scatters, 1 if indexed else 0)
        # scatters first: they only read what other stores may overwrite
        for k, store in enumerate(scatters):
            self._scatter(f"scatter{k}", store)
        if indexed:
            self._stage(indexed)

    def _stage(self, group: Sequence[IndexedStore]) -> None:
        """One launch: values known before the loops are stored in them besides, each time at one element."""
        looped = any(one.store.looped for one in group)
        raxes = self.kernel.raxes if looped else ()
        variables = [*self.axes, *(self.raxes if looped else ())]
        calls: list[str] = []
        ordered = sorted(group, key=lambda one: one.store.section)
        for number, part in groupby(ordered, key=lambda one: one.store.section):
            values = [one.value for one in part]
            roots = list(dict.fromkeys(values))
            name, point = f"out_of{number}", variables
            self._function(name, number, roots, tuple_text(roots))
            if looped and not self.kernel.sections[number].looped:
                point = list(self.axes)
                self.lines.append(f'once{number} = p.once("once{number}", {name})')
                name = f"once{number}"
            calls += [f"{name}({', '.join(point)})[{roots.index(value)}]" for value in values]
        still = (0,) * len(raxes)
        strides = [(*one.at.strides, *(() if one.store.looped else still)) for one in ordered]
        self._store_stage("out", ", ".join(variables), calls, looped, strides)
        extents = [axis_size(a) for a in (*self.kernel.axes, *raxes)]
        for one, steps in zip(ordered, strides, strict=True):
            self._output(one.store.buffer, one.at.offset, list(zip(extents, steps, strict=True)))

    def _tile_lines(self) -> list[str]:
        axes = ", ".join(self.axes)
        return [f'{name} = p.tile("{name}", lambda {axes}: ({text}, ))' for text, name in self.tiles.items()]

    def _scatter(self, name: str, store: Access) -> None:
        arg, mode = self.args[store.buffer], store.mode
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
