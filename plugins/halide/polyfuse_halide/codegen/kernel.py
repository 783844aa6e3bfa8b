"""A kernel as text: a Python program that builds its Halide pipeline from the library's stages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.ir.statements import Reduce, Store
from polyfuse.ir.types import DType
from polyfuse.kit import Access, Affine
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
from polyfuse_halide.codegen.address import index_text, injective_affine
from polyfuse_halide.codegen.forward import forwarded, with_plain_names
from polyfuse_halide.codegen.ops import MATH
from polyfuse_halide.codegen.values import LIMIT, ValueEmitter, tuple_text
from polyfuse_halide.schedules.pins import Pins, pinned, words
from polyfuse_halide.schedules.plan import choose_plan

_GAINS = MATH - {"atan2", "digamma", "erfc", "erfinv", "fmod", "hypot", "lgamma", "pow"}
"""Functions of one number that are polynomials."""
_ONCE = frozenset(
    ("add", "sub", "mul", "div", "where", "neg", "abs", "sqrt", "rsqrt", "copysign", "const", "eq")
)
"""What else has each operand once."""
_USES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("lt", "le", "gt", "ge", "ne", "sign", "isnan", "isinf", "bitcast"), 2),
        **dict.fromkeys(("minimum", "maximum", "fmin", "fmax", "cast", "floor", "ceil", "trunc", "round"), 3),
        **dict.fromkeys(("floor_div", "remainder", "fmod", "pow", "lgamma", "digamma", "erfinv"), 1 << 20),
    }
)
"""How often others have theirs at most; the rest counts as ten times."""
_MOST = 20_000
"""Parts of what a value is made of, each as often as it is met, that are walked in a few milliseconds."""


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
    """The program of a kernel, a function named `Source.SYMBOL`; `checked`: one that looks at each index
    before it is read or written.
    """
    check_sizes(kernel)
    plain = with_plain_names(forwarded(kernel))
    plan = pinned(kernel, choose_plan(plain, lanes, config), pins or {})
    emitter = Emitter(plain, f"p.schedule = {plan.text()}", plan.transpose, extents=checked, checked=checked)
    if plan.kind != "points":
        emitter.side_by_side = plan.lanes * plan.unroll if plan.kind == "columns" else 1
    return replace(emitter.emit(), note=words(kernel, plan))


def check_sizes(kernel: Kernel) -> None:
    """Refuse what Halide cannot index.

    Raises:
        UnsupportedError: a buffer has more elements than 32 bits count.
    """
    for arg in kernel.args:
        if isinstance(arg.numel, int) and arg.numel >= LIMIT:
            raise UnsupportedError(
                f"buffer {arg.name} has {arg.numel} elements and Halide counts in 32 bits",
                "use another backend",
            )


@dataclass(frozen=True)
class IndexedStore:
    """A store of plain values whose elements are affine in the axes."""

    store: Access
    at: Affine

    @property
    def value(self) -> str:
        """What is stored."""
        return self.store.stmt.args[0]


class Emitter(ValueEmitter):
    """The state of writing one kernel: its values, then where they are stored, and what launches must know.

    Args:
        schedule: the line that says it.
        extents: inputs know how many elements they have.
    """

    def __init__(
        self, kernel: Kernel, schedule: str, transpose: int = -1, extents: bool = False, checked: bool = False
    ) -> None:
        super().__init__(kernel, transpose, checked)
        self.schedule, self.extents = schedule, extents
        self.contracting = kernel.device == "cpu" and contracts(kernel)
        self.loaded: list[str] = []
        self.outputs: list[dict[str, object]] = []

    # --- the program ----------------------------------------------------------------------------------------

    def _backwards(self, index: IndexLike) -> bool:
        """Whether neighbours are read in the opposite order, somewhere: reflected margins are."""
        return not isinstance(index, int) and any(
            term[1] < 0 and free_axes(Index((term,), 0)) for term in index.terms
        )

    def emit(self) -> KernelText:
        kernel, out = self.kernel, self.lines
        stores = [access for access in self.facts.accesses if access.is_store]
        self._check_order(stores)
        out.append(self.schedule)
        for arg in kernel.args:
            if arg.kind == "size":
                out.append(f'{arg.name} = p.size("{arg.name}")')
        loads = [access for access in self.facts.accesses if not access.is_store]
        read = {access.buffer for access in loads}
        backwards = {access.buffer for access in loads if self._backwards(access.index)}
        for arg in kernel.args:
            if arg.name in read:
                extent = f", {_extent(arg)}" if self.extents else ""
                extent += ", backwards=True" if arg.name in backwards else ""
                out.append(f'{arg.name} = p.input("{arg.name}", "{arg.dtype}"{extent})')
                self.loaded.append(arg.name)
        for variable in kernel.axes:
            out.append(f'p.axis("{axis_name(variable)}", {index_text(axis_size(variable))})')
        for variable in kernel.raxes:
            out.append(f'p.loop("{axis_name(variable)}", {index_text(axis_size(variable))})')
        for number, section in enumerate(kernel.sections):
            self._section(number, section)
        self._stores(stores)
        text = f"def {Source.SYMBOL}(p):\n" + "".join(f"    {line}\n" for line in out)
        return KernelText(text, self._meta())

    # --- stores ---------------------------------------------------------------------------------------------

    def _check_order(self, stores: Sequence[Access]) -> None:
        """Stages run one after the other: what one stores, no later one may still read as it was."""
        stages = {s.section if s.looped else -1 for s in stores}
        written = {store.buffer: self.facts.writes(store.buffer) for store in stores}
        for access in self.facts.accesses:
            for store in () if access.is_store else written.get(access.buffer, ()):
                safe = (
                    # of a point's own element, everything is computed before anything is stored
                    (len(stages) == 1 or not store.looped)
                    and store.section >= access.section
                    and len(written[store.buffer]) == 1
                    and store.mode == "set"
                    and store.index == access.index
                    and access.looped == store.looped
                )
                if not safe:
                    raise UnsupportedError(
                        f"buffer {store.buffer} is read and written in several stages",
                        "use another backend for this kernel",
                    )
        for several in written.values():
            if len({store.section for store in several}) > 1:
                raise UnsupportedError(
                    f"buffer {several[0].buffer} is written in several stages",
                    "use another backend for this kernel",
                )

    def _stores(self, stores: Sequence[Access]) -> None:
        indexed, scatters = self._by_index(stores)
        stages: dict[int, list[IndexedStore]] = {}
        for one in indexed:
            stages.setdefault(one.store.section if one.store.looped else -1, []).append(one)
        self._mind_aliases(stores, scatters, len(stages))
        # scatters first: they only read what other stores may overwrite
        for k, store in enumerate(scatters):
            self._scatter(f"scatter{k}", store)
        for key, group in sorted(stages.items()):
            self._plain_stage(f"out{key}" if key >= 0 else "points", group)

    def _by_index(self, stores: Sequence[Access]) -> tuple[list[IndexedStore], list[Access]]:
        """Stores of plain values at elements that are affine in the axes, and all others."""
        indexed: list[IndexedStore] = []
        scatters: list[Access] = []
        for store in stores:
            plain = store.mode == "set" and len(store.stmt.args) == 1
            found = injective_affine(store.index, self._space(store)) if plain else None
            if found is None:
                scatters.append(store)
            else:
                indexed.append(IndexedStore(store, found))
        return indexed, scatters

    def _mind_aliases(self, stores: Sequence[Access], scatters: Sequence[Access], stages: int) -> None:
        """Where an output is an input, or may alias one, all is computed before anything is stored."""
        risky = {alias.output for alias in self.kernel.aliases}
        risky |= {store.buffer for store in stores if self.facts.reads(store.buffer)}
        if not risky or len(stores) == 1:
            return
        apart = bool(scatters) or not self.axes
        if any(store.buffer in risky for store in scatters) or (apart and stages > 1):
            raise UnsupportedError(
                "an output may alias an input, and several stages store", "use another backend"
            )
        self.lines.append("p.careful = True")

    def _plain_stage(self, name: str, group: Sequence[IndexedStore]) -> None:
        store = group[0].store
        variables = ", ".join([*self.axes, *(self.raxes if store.looped else ())])
        calls: list[str] = []
        ordered = sorted(group, key=lambda one: one.store.section)
        for number, part in groupby(ordered, key=lambda one: one.store.section):
            values = [one.value for one in part]
            roots = list(dict.fromkeys(values))
            self._function(f"{name}_of{number}", number, roots, tuple_text(roots))
            calls += [f"{name}_of{number}({variables})[{roots.index(value)}]" for value in values]
        self._store_stage(name, variables, calls, store.looped, [one.at.strides for one in ordered])
        extents = [axis_size(a) for a in self._space(store)]
        for one in ordered:
            self._output(one.store.buffer, one.at.offset, list(zip(extents, one.at.strides)))

    def _store_stage(
        self,
        name: str,
        variables: str,
        calls: Sequence[str],
        looped: bool,
        strides: Sequence[Sequence[IndexLike]],
    ) -> None:
        """The lines of a stage that stores results of calls."""
        steps = ", ".join(f"[{', '.join(map(index_text, of_one))}]" for of_one in strides)
        self.lines.append(f"def {name}_all({variables}):")
        self.lines.append(f"    return ({''.join(call + ', ' for call in calls)})")
        self.lines += self._tile_lines()
        self.lines.append(f'p.store("{name}", {looped}, [{steps}], {name}_all)')

    def _tile_lines(self) -> list[str]:
        """Lines of stages that the store reads."""
        return []

    def _scatter(self, name: str, store: Access) -> None:
        stmt = store.stmt
        assert isinstance(stmt, Store)
        mode = "set" if stmt.mode == CHECK_MODE else stmt.mode  # any one of what collides
        args = list(stmt.args)
        mask = "None" if stmt.mask is None else args[-1]
        offset = self._index_text(store.buffer, stmt.index, args[1 : 1 + len(stmt.indirect)], mask)
        self._function(f"{name}_of", store.section, stmt.args, f"({offset}, {args[0]}, {mask})")
        lane = self._scatter_lane(store)
        arg = self.args[store.buffer]
        extent = _extent(arg)
        disjoint = mode == "set" and (
            bool(stmt.indirect)
            or stmt.mask is None
            or injective_affine(stmt.index, self._space(store)) is not None
        )
        self.lines.append(
            f'p.scatter("{name}", "{arg.dtype}", {store.looped}, "{mode}", {extent}, {name}_of, '
            f'lane="{lane}", disjoint={disjoint})'
        )
        self._output(store.buffer, 0, [(arg.numel if arg.numel is not None else 1, 1)])

    def _space(self, store: Access) -> tuple[Index, ...]:
        return (*self.kernel.axes, *(self.kernel.raxes if store.looped else ()))

    def _scatter_lane(self, store: Access) -> str:
        """An axis along which elements differ whatever the indirect values are."""
        for name in map(axis_name, reversed(self._space(store))):
            step = coefficient(store.index, name)
            moves = isinstance(step, int) and step != 0
            if moves and all(self.facts.uniform(value, (name,)) for value in store.indirect):
                return name
        return ""

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


def contracts(kernel: Kernel) -> bool:
    """Whether the functions of a kernel multiply and add in one step: if there is much to gain and little to
    walk. Where arithmetic is strict stage by stage, Halide walks everything that a stage is defined to be,
    once for each way to each part of it.
    """
    stmts = [s for part in kernel.sections for s in part.body]
    if not any(s.op in _GAINS and s.dtype is DType.f32 for s in stmts):
        return False
    if any(isinstance(s, Reduce) and s.kind in ("argmin", "argmax") for s in stmts):
        return False
    parts: dict[str, int] = {}
    for stmt in stmts:
        uses = 1 if stmt.op in _GAINS or stmt.op in _ONCE else _USES.get(stmt.op, 10)
        # what a loop has found is a stage of its own
        count = 1 if stmt.op in ("reduce", "scan") else 4 + uses * sum(parts[a] for a in stmt.args)
        if count > _MOST:
            return False
        parts.update((target, count) for target in stmt.targets)
    return True
