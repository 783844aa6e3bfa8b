"""Host programs for packages: that of an entry, and those of functions that its operators call."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from polyfuse.aot.description import Function
from polyfuse.aot.functions import operand
from polyfuse.base.digest import stable_json
from polyfuse.base.errors import PackageError, PolyfuseError
from polyfuse.base.text import shorten
from polyfuse.compiler.built import BuiltGraph
from polyfuse.compiler.packages.weights import WeightTable
from polyfuse.compiler.session import CompileSession
from polyfuse.ir.text.print import text as ir_text
from polyfuse.lowering.calls.host import CALLERS
from polyfuse.plugin import Backend, PackableKernel
from polyfuse.runtime.frozen import CHECKED, FROZEN, TOGETHER
from polyfuse.runtime.subgraphs import Subgraph
from polyfuse.torch_compat.ops import comes_with_torch
from polyfuse.torch_compat.tracing.aot import cache_record


@dataclass(frozen=True)
class PackagedKernel:
    """A kernel of a program: who made it, and where it lies.

    Attributes:
        unit: name of the folder in the package.
        key: of the kernel in that folder.
    """

    backend: Backend
    folder: Path
    unit: str
    key: str


@dataclass(frozen=True)
class PackagedProgram:
    """What goes into a package for one host program.

    Attributes:
        member, text: the program.
        kernels_member, kernel_texts: what its kernels were generated from, as JSON.
        kernels: that it launches, by their names there.
        calls: those that it calls as objects, by their keys there.
        objects: keys of constants that it reads, with their positions among the weights.
        functions: that its operators call, as the description has them.
        below: the programs of these functions, and of those that they call.
        device_types: that its kernels run on.
    """

    member: str
    text: str
    kernels_member: str
    kernel_texts: str
    kernels: Mapping[str, PackagedKernel]
    calls: Mapping[str, PackagedKernel]
    objects: Mapping[str, int]
    functions: tuple[Function, ...]
    below: tuple[PackagedProgram, ...]
    device_types: frozenset[str]

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of all operators that it calls, and its functions call."""
        texts = (self.text, *(program.text for program in self.below))
        return tuple(sorted({name for text in texts for name in _operators(text)}))


def recorded(_: object, built: BuiltGraph) -> BuiltGraph:
    """As a recorder of `compile_whole`: leaves with each module what it was built from."""
    return built


def located(kernels: Mapping[str, PackagedKernel]) -> dict[str, tuple[str, str]]:
    """The unit and the key there of each kernel."""
    return {name: (kernel.unit, kernel.key) for name, kernel in kernels.items()}


def packaged_program(
    name: str, built: BuiltGraph, table: WeightTable, session: CompileSession
) -> PackagedProgram:
    """The program of a graph that was compiled with `recorded`; its constants go into `table`.

    Raises:
        PackageError: it needs an object that cannot be stored, or a kernel that was found to be wrong here.
    """
    objects: dict[str, int] = {}
    calls: dict[str, PackagedKernel] = {}
    functions: list[Function] = []
    below: list[PackagedProgram] = []
    held = built.schedule.graph.objects
    for key in built.module.namespace["OBJECTS"].values():
        value = held[key]
        if isinstance(value, Subgraph):
            program = packaged_program(f"{name}.{len(functions)}", _built(value), table, session)
            functions.append(_function(key, value, program))
            below += (program, *program.below)
        elif isinstance(value, torch.Tensor):
            objects[key] = table.add(name, f"{name}.{key}", "constant", value)
        elif hasattr(value, "located"):
            calls[key] = _written_by_hand(value, session)
        else:
            raise _unstorable(key, value)
    pending = built.kernels
    made = {kernel: item.built for kernel, item in pending.items()}
    rows = {
        key: (m.name, m.config, list(dict.fromkeys(o.op for o in m.kernel.origins)), ir_text(m.kernel, False))
        for key, m in made.items()
    }
    return PackagedProgram(
        f"programs/{name}.py",
        built.module.text,
        f"programs/{name}.kernels.json",
        stable_json(rows),
        {kernel: _packaged(item) for kernel, item in pending.items()},
        calls,
        objects,
        tuple(functions),
        tuple(below),
        frozenset(item.launch.kernel.device.partition(":")[0] for item in pending.values()),
    )


def check_operators(operators: tuple[str, ...], modules: tuple[str, ...]) -> None:
    """Raise `PackageError` for an operator that cannot be called where a package is loaded."""
    for name in operators:
        if name in CALLERS:
            continue
        if name.startswith("higher_order."):
            raise PackageError(
                f"the model calls the operator {name}, which calls back into Python",
                "leave what uses it out of the exported part of the model",
            )
        if not comes_with_torch(name) and not modules:
            raise PackageError(
                f"the model calls the operator {name}, which is no part of torch",
                "name the module that registers it in modules=",
            )


def _function(key: str, value: Subgraph, program: PackagedProgram) -> Function:
    return Function(
        key,
        program.member,
        located(program.kernels),
        program.objects,
        located(program.calls),
        program.functions,
        program.kernels_member,
        tuple(map(operand, value.layouts)),
        value.single,
    )


def _built(value: Subgraph) -> BuiltGraph:
    found = cache_record(value.run)
    assert isinstance(found, BuiltGraph), found
    return found


def _unstorable(key: str, value: object) -> PackageError:
    if isinstance(value, GraphModule):
        return PackageError(
            f"an operator of the model calls the function {key}, which could not be compiled (it writes to"
            " its arguments, or has sizes that only what surrounds it knows)",
            "return new tensors from it, or leave what calls it out of the exported part of the model",
        )
    return PackageError(
        f"the model needs {key} ({shorten(repr(value), 80)}), which calls back into Python",
        "leave what uses it out of the exported part of the model",
    )


def _packaged(pending: Any) -> PackagedKernel:
    source, backend = pending.emitted.source, pending.emitted.backend
    location = pending.future.locations()[source.key]
    if isinstance(location, PolyfuseError):
        raise location
    return PackagedKernel(backend, location.folder, location.folder.name[:16], location.source_key)


def _written_by_hand(kernel: PackableKernel, session: CompileSession) -> PackagedKernel:
    cause = session.records.barred(session.records.bar_key(kernel.key, {}), "")
    if cause:
        raise PackageError(
            f"the model needs the kernel {kernel.__name__}, which is barred here ({shorten(cause, 200)})",
            "package it with the option gemm='library', which leaves this to torch",
        )
    name, folder, key = kernel.located()
    return PackagedKernel(session.plugins.backend(name), folder, folder.name[:16], key)


def _operators(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "operator":
            name = str(ast.literal_eval(node.args[0]))
            yield name.removeprefix(FROZEN).removeprefix(CHECKED).removeprefix(TOGETHER)
