"""One exported program, compiled for a package: its host program, kernels, and how it is called."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from polyfuse.aot.description import Argument, Entry, Source, Symbol
from polyfuse.base.errors import PackageError
from polyfuse.base.text import shorten
from polyfuse.compiler.built import BuiltGraph
from polyfuse.compiler.offered_rewrites import OfferedRewrites
from polyfuse.compiler.packages.programs import (
    PackagedProgram,
    check_operators,
    located,
    packaged_program,
    recorded,
)
from polyfuse.compiler.packages.weights import WeightTable
from polyfuse.compiler.session import CompileSession
from polyfuse.compiler.stages import compile_whole
from polyfuse.frontend.exported import ExportedGraph, ExportedInput
from polyfuse.frontend.graph import AtenGraph, BoxedCallable
from polyfuse.frontend.traced import compile_traced
from polyfuse.runtime.frozen import FrozenValues, PackedInputs, laid_out
from polyfuse.torch_compat.tracing import fake, fx, pytree, shapes


@dataclass(frozen=True)
class PackagedEntry:
    """What goes into a package for one entry.

    Attributes:
        entry: how it is described.
        program: its host program.
        devices: device types that it computes on.
        exported, built: what it was made of.
    """

    entry: Entry
    program: PackagedProgram
    devices: frozenset[str]
    exported: ExportedGraph
    built: BuiltGraph


def compile_entry(
    name: str,
    exported: ExportedGraph,
    table: WeightTable,
    session: CompileSession,
    modules: tuple[str, ...],
    *,
    last: bool,
    native: bool,
    written: Collection[int] = (),
) -> PackagedEntry:
    """Compile an exported program; its tensors go into `table`.

    Args:
        last: whether convolutions may get their channels last.
        native: whether the program has to run without Python.
        written: addresses of tensors that some entry writes to: nothing that follows from them is folded.
    """
    values = fx.placeholder_values(exported.module.graph)
    env = fake.shape_env_of(fake.detect_fake_mode(values))
    offered = OfferedRewrites(session.extensions, native)
    built, folded = _compile(name, exported, session, offered, last, written)
    texts = shapes.condition_texts(env, values)
    program = packaged_program(name, built, table, session)
    check_operators(program.operators, modules)
    inputs, arguments = _inputs(name, exported, values, table, folded)
    entry = Entry(
        program.member,
        located(program.kernels),
        program.objects,
        inputs,
        arguments,
        exported.positional,
        exported.keywords,
        {str(symbol): Symbol(*shapes.finite_range(bounds)) for symbol, bounds in exported.ranges.items()},
        texts,
        _nesting(exported.in_spec, "arguments"),
        _nesting(exported.out_spec, "results"),
        program.operators,
        kernel_texts=program.kernels_member,
        calls=located(program.calls),
        functions=program.functions,
    )
    devices = {v.device.type for v in values if isinstance(v, torch.Tensor)}
    devices |= {kind for part in (program, *program.below) for kind in part.device_types}
    return PackagedEntry(entry, program, frozenset(devices), exported, built)


def _compile(
    name: str,
    exported: ExportedGraph,
    session: CompileSession,
    offered: OfferedRewrites,
    last: bool,
    written: Collection[int],
) -> tuple[BuiltGraph, Folded | None]:
    found: list[BuiltGraph] = []
    frozen: list[FrozenValues] = []
    stored = [i for i, item in enumerate(exported.inputs) if item.origin != "argument"]
    if session.settings.freezing:
        tensors = {i: exported.tensors[exported.inputs[i].name] for i in stored}
        stored = [i for i in stored if tensors[i].data_ptr() not in written]

    def inner(graph: AtenGraph) -> BoxedCallable:
        found.append(compile_whole(replace(graph, packaged=True), session, record=recorded))
        return found[0].module

    compile_traced(
        exported.module,
        inner=inner,
        settings=session.settings,
        name=name,
        static=stored,
        more=offered,
        channels_last=session.wants_channels_last if last else None,
        elementwise=session.extensions.is_elementwise,
        reads_narrow=session.reads_narrow,
        fold=frozen.append,
    )
    packed = found[0].module.packed_inputs or PackedInputs((), (), frozenset())
    return found[0], Folded(frozen[0], packed) if frozen else None


def _inputs(
    entry: str,
    exported: ExportedGraph,
    values: tuple[Any, ...],
    table: WeightTable,
    folded: Folded | None,
) -> tuple[tuple[Source, ...], tuple[Argument, ...]]:
    sources: list[Source] = []
    arguments: list[Argument] = []
    unread = folded.packed.unread if folded is not None else frozenset()
    for position, (item, value) in enumerate(zip(exported.inputs, values, strict=True)):
        if item.origin == "argument":
            sources.append(Source("argument", len(arguments)))
            arguments.append(_argument(item, value))
        elif position not in unread:
            tensor = exported.tensors[item.name]
            sources.append(Source("weight", table.add(entry, item.name, item.origin, tensor, item.mutated)))
    if folded is not None:
        given = [exported.tensors.get(item.name) for item in exported.inputs]
        for number, tensor in enumerate(folded.tensors(given)):
            sources.append(Source("weight", table.add(entry, f"{entry}.{number}", "constant", tensor)))
    return tuple(sources), tuple(arguments)


def _argument(item: ExportedInput, value: Any) -> Argument:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise PackageError(f"{item.name} is a tensor of layout {value.layout}", "pass a dense tensor")
        return Argument(
            item.name,
            "tensor",
            str(value.dtype).removeprefix("torch."),
            value.device.type,
            size_texts(value.shape),
            size_texts(value.stride()),
            item.mutated,
        )
    if isinstance(value, torch.SymInt):
        return Argument(item.name, "number", size=size_texts((value,)))
    if value is None or isinstance(value, (bool, int, float, str)):
        return Argument(item.name, "fixed", value=value)
    raise PackageError(
        f"the argument {item.name} is a {type(value).__name__}, which cannot be compared at a call",
        "pass tensors, numbers and texts",
    )


def size_texts(sizes: Any) -> tuple[int | str, ...]:
    """Sizes as packages have them."""
    return tuple(size if isinstance(size, int) else str(size) for size in shapes.exprs_of(sizes))


def _nesting(spec: Any, what: str) -> str:
    try:
        return pytree.spec_text(spec)
    except Exception as error:
        raise PackageError(
            f"{what} are nested in a container that has no name in files ({shorten(str(error), 200)})",
            "register it with torch.export.register_dataclass, or use tuples, lists and dictionaries",
        ) from error


@dataclass(frozen=True)
class Folded:
    """How the inputs of a program are made that its graph did not have.

    Attributes:
        values: what follows from tensors of the model; the program takes them behind these.
        packed: what is laid out for kernels of the program, which takes it last, and which of the
            inputs before it does not take.
    """

    values: FrozenValues
    packed: PackedInputs

    def tensors(self, given: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """What the program takes behind the tensors and arguments of its graph.

        Args:
            given: the tensors of the model, where the graph takes them; None for each argument.
        """
        made: list[Any] = [*given, *self.values([given[position] for position in self.values.sources])]
        first = len(given)
        with torch.inference_mode(False), torch.no_grad():
            made += [
                laid_out(step.run(made), *layout)
                for step, layout in zip(self.packed.steps, self.packed.layouts, strict=True)
                if layout is not None
            ]
        return [made[i] for i in range(first, len(made)) if i not in self.packed.unread]
