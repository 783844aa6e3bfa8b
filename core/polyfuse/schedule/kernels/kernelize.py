"""A unit becomes a Kernel: ordered and merged loops, sections of statements, arguments. Units that compute
the same, such as those of equal layers, share one, which is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from polyfuse.ir.kernel import Kernel, KernelArg, RowBuffer, Section
from polyfuse.ir.nodes import Buffer, LoopNode, Node, Scatter
from polyfuse.ir.ops import CHECK_MODE, GROUP_MODES
from polyfuse.ir.statements import Load, Reduce, Scan, Store, indices, with_index
from polyfuse.ir.statements import indices as indices_of
from polyfuse.ir.types import DType
from polyfuse.plugin import TargetInfo
from polyfuse.schedule.fusion.space import Space
from polyfuse.schedule.fusion.units import Member, Unit
from polyfuse.schedule.kernels.axes import indices_in, merged_space
from polyfuse.schedule.kernels.body import assign_sections, effects_of
from polyfuse.schedule.kernels.outlines import BufferFacts, Outline, members_of, outline_of
from polyfuse.schedule.kernels.sections import Layout
from polyfuse.schedule.reductions.gemm_reductions import is_group_store
from polyfuse.symbolic import (
    Atom,
    Index,
    IndexLike,
    atoms,
    axis,
    axis_name,
    axis_size,
    host,
    substitute,
    symbol,
)


@dataclass(frozen=True)
class KernelContext:
    """What kernels depend on besides their outline; `target_info` is that of a backend on a device, `hint`
    gives the example value of a size. With `deterministic`, what several points store to one element is
    stored in order.
    """

    hint: Callable[[IndexLike], int]
    symbol_hints: Mapping[str, int]
    reorder: bool
    numerics: str
    target_info: Callable[[str, str], TargetInfo]
    deterministic: bool = False


Operands = tuple[str | IndexLike, ...]


@dataclass(frozen=True)
class SharedKernels:
    """Kernels by what they compute.

    Attributes:
        context: what they depend on besides that.
        buffers: of the graph, by name.
        removed: those that live only inside one kernel.
        aligned: those at addresses that are aligned, for backends that ask for it.
        made: the kernel of each outline, and its operands by their neutral names.
    """

    context: KernelContext
    buffers: Mapping[str, Buffer]
    removed: frozenset[str]
    aligned: frozenset[str]
    made: dict[Outline, tuple[Kernel, Operands]] = field(default_factory=dict)

    def kernel(self, unit: Unit) -> tuple[Kernel, Operands]:
        """The kernel of a unit, and its operands: buffer names and size expressions, per argument."""
        wanted = self.context.target_info(unit.backend, unit.device).alignment
        aligned = self.aligned if wanted else frozenset[str]()
        outline, names = outline_of(unit, self.buffers, self.removed, aligned)
        found = self.made.get(outline)
        if found is None:
            found = self.made[outline] = _build_kernel(outline, self.context)
        kernel, operands = found
        origins = dict.fromkeys(origin for member in unit.members for origin in member.node.origins)
        named = tuple(names[item] if isinstance(item, str) else item for item in operands)
        return replace(kernel, origins=tuple(origins)), named


def _build_kernel(outline: Outline, context: KernelContext) -> tuple[Kernel, Operands]:
    """The kernel of units with this outline, without origins, and its operands: neutral names of buffers and
    size expressions, per argument.
    """
    members, buffers = members_of(outline), dict(outline.buffers)
    space, mapping = _loops(outline, members, context)
    effects = effects_of(members, mapping, buffers, context.numerics == "fast")
    row_bytes = context.target_info(outline.backend, outline.device).row_bytes
    layout = Layout(
        *assign_sections(effects, [axis_name(a) for a in space.raxes]), space, context.hint, row_bytes
    )
    sections, row_buffers = layout.sections()
    sections, row_buffers, args, operands = _arguments(sections, row_buffers, buffers)
    for symbol_name, value in _symbols(space, sections, args, row_buffers).items():
        hint = context.symbol_hints.get(symbol_name)
        args.append(KernelArg(symbol_name, "size", DType.i64, hint=hint))
        operands.append(value)
    hints = tuple(context.hint(axis_size(a)) for a in (*space.axes, *space.raxes))
    kernel = Kernel(
        _kernel_name(sections),
        outline.device.split(":")[0],
        space.axes,
        space.raxes,
        tuple(args),
        row_buffers,
        sections,
        hints,
        deterministic=context.deterministic and any(_collides(m.node) for m in members),
        numerics=context.numerics,
    )
    return sizes_as_arguments(kernel, tuple(operands), context.hint)


def _loops(
    outline: Outline, members: Sequence[Member], context: KernelContext
) -> tuple[Space, dict[str, IndexLike]]:
    indices: list[IndexLike] = []
    stores: list[IndexLike] = []
    whole: list[IndexLike] = []
    for member in members:
        assert isinstance(member.node, LoopNode)
        for index in indices_in(member.node.expressions()):
            indices.append(substitute(index, member.mapping))
        own = getattr(member.node, "index", None)
        if is_group_store(member.node):
            # its index counts groups; what must stay a loop, or become one, is what the groups are of
            whole += [substitute(var, member.mapping) for var in member.node.axes]
        elif own is not None:
            stores.append(substitute(own, member.mapping))
    indices = list(dict.fromkeys(indices + stores))
    return merged_space(
        outline.space, indices, stores, whole, context.hint, context.reorder, outline.has_scan
    )


def _arguments(
    sections: tuple[Section, ...], row_buffers: tuple[RowBuffer, ...], buffers: Mapping[str, BufferFacts]
) -> tuple[tuple[Section, ...], tuple[RowBuffer, ...], list[KernelArg], list[str | IndexLike]]:
    """Sections and row buffers with the names of arguments, the arguments that are buffers, and which these
    are.
    """
    local_names = {x.name for x in row_buffers}
    use: dict[str, set[str]] = {}
    for section in sections:
        for stmt in section.body:
            if isinstance(stmt, (Load, Store)) and stmt.buffer not in local_names:
                kinds = use.setdefault(stmt.buffer, set())
                kinds.add(stmt.op)
                if isinstance(stmt, Store) and stmt.mode not in ("set", *GROUP_MODES):
                    kinds.add("load")
    rename = {item.name: item.name.removeprefix("%") for item in row_buffers}
    row_buffers = tuple(replace(item, name=rename[item.name]) for item in row_buffers)
    args: list[KernelArg] = []
    operands: list[str | IndexLike] = []
    for kind, wanted in (("in", {"load"}), ("inout", {"load", "store"}), ("out", {"store"})):
        number = 0
        for buffer, kinds in use.items():
            if kinds != wanted:
                continue
            facts = buffers[buffer]
            assert facts.dtype is not None
            rename[buffer] = f"{kind}{number}"
            number += 1
            args.append(KernelArg(rename[buffer], kind, facts.dtype, facts.extent, facts.aligned))
            operands.append(buffer)
    sections = tuple(
        Section(
            s.looped,
            tuple(
                replace(x, buffer=rename.get(x.buffer, x.buffer)) if isinstance(x, (Load, Store)) else x
                for x in s.body
            ),
        )
        for s in sections
    )
    return sections, row_buffers, args, operands


def _collides(node: Node) -> bool:
    """Whether points of a node may store to one element, and which of them comes last matters."""
    return isinstance(node, Scatter) and not is_group_store(node) and node.mode != CHECK_MODE


def _symbols(
    space: Space, sections: Sequence[Section], args: Sequence[KernelArg], row_buffers: Sequence[RowBuffer]
) -> Mapping[str, IndexLike]:
    """Shape symbols that the kernel's loops, indices and extents use, by name.

    Of a size that the host computes it needs the result alone.
    """
    found: dict[str, IndexLike] = {}

    def note(*indices: object) -> None:
        for index in indices:
            for monomial, _ in index.terms if isinstance(index, Index) else ():
                for atom in monomial:
                    if atom.kind == "sym":
                        found.setdefault(atom.name, symbol(atom.name, atom.lo, atom.hi))
                    elif atom.kind not in ("axis", "host"):
                        note(*atom.args)

    note(*(axis_size(var) for var in (*space.axes, *space.raxes)))
    for section in sections:
        for stmt in section.body:
            note(*indices(stmt))
    note(*(row.size for row in row_buffers), *(arg.numel for arg in args))
    return dict(sorted(found.items()))


def _kernel_name(sections: Sequence[Section]) -> str:
    """A name from what the kernel computes, the same for equal kernels."""
    plain = {"load", "store", "const", "cast", "index", "where", "add", "mul", "sub"}
    words: dict[str, None] = {}
    for section in sections:
        for stmt in section.body:
            word = stmt.kind if isinstance(stmt, (Reduce, Scan)) else stmt.op
            if word not in plain:
                words[word] = None
    chosen = list(words)[:5] or ["pointwise"]
    return "fused_" + "_".join(chosen)


def sizes_as_arguments(
    kernel: Kernel, operands: Operands, hint: Callable[[IndexLike], int]
) -> tuple[Kernel, Operands]:
    """The kernel with a further size argument for each number that it cannot compute itself, and the operands
    with these numbers."""
    used = list(_atoms_of(kernel))
    found = {atom.name: atom for atom in used if atom.kind == "host"}
    if not found:
        return kernel, operands
    numbers: dict[str, IndexLike] = {}
    args, values = list(kernel.args), list(operands)
    for text, atom in found.items():
        name, value = f"h{len(numbers)}", host(text, atom.args, atom.lo, atom.hi)
        numbers[text] = symbol(name, atom.lo, atom.hi)
        args.append(KernelArg(name, "size", DType.i64, hint=hint(value)))
        values.append(value)
    axes = {a.name: axis(a.name, substitute(a.args[0], numbers)) for a in used if a.kind == "axis"}

    def known(index: Any) -> Any:
        return substitute(index, {**numbers, **axes}) if isinstance(index, Index) else index

    def section(old: Section) -> Section:
        return replace(old, body=tuple(with_index(stmt, known) for stmt in old.body))

    new = replace(
        kernel,
        axes=tuple(map(known, kernel.axes)),
        raxes=tuple(map(known, kernel.raxes)),
        args=tuple(replace(arg, numel=known(arg.numel)) for arg in args),
        row_buffers=tuple(replace(row, size=known(row.size)) for row in kernel.row_buffers),
        sections=tuple(map(section, kernel.sections)),
    )
    return new, tuple(values)


def _atoms_of(kernel: Kernel) -> Iterator[Atom]:
    """The atoms of all indices of a kernel, in order, with those of the extents of axes."""
    indices: list[Any] = [*kernel.axes, *kernel.raxes, *(arg.numel for arg in kernel.args)]
    indices += [row.size for row in kernel.row_buffers]
    indices += [index for part in kernel.sections for stmt in part.body for index in indices_of(stmt)]
    for index in indices:
        for atom in atoms(index) if isinstance(index, Index) else ():
            yield atom
            if atom.kind == "axis":
                yield from atoms(atom.args[0])
