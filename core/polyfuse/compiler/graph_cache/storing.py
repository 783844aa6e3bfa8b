"""What is stored of a graph that was compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from polyfuse.compiler.graph_cache.record import GraphRecord, HostRecord, KernelRecord, facts_of
from polyfuse.compiler.native_host import NativeHost
from polyfuse.compiler.packages.kernels import packed
from polyfuse.compiler.reports.report import GraphReport
from polyfuse.compiler.session import CompileSession
from polyfuse.frontend.graph import AtenGraph
from polyfuse.runtime.module import CompiledModule

if TYPE_CHECKING:
    from polyfuse.compiler.kernels import PendingKernel

__all__ = ["record_of"]

# Among the kernels of a graph, its host program: no kernel has an empty name.
_HOST = ""

# Larger constants are not copied into an entry.
_CONSTANT_BYTES = 1 << 20


def record_of(
    aten: AtenGraph,
    module: CompiledModule,
    kernels: Mapping[str, PendingKernel],
    objects: Mapping[str, Any],
    report: GraphReport,
    session: CompileSession,
) -> GraphRecord | str:
    """What is stored of a compiled graph, or why it cannot be."""
    constants = {key: objects[key] for key in module.namespace["OBJECTS"].values()}
    for value in constants.values():
        if type(value) is not torch.Tensor or value.layout != torch.strided or value.requires_grad:
            return f"its program refers to a {type(value).__name__}"
    if sum(value.nbytes for value in constants.values()) > _CONSTANT_BYTES:
        return "its constants are large"
    sources = {name: (kernel.emitted.backend, kernel.emitted.source) for name, kernel in kernels.items()}
    native = module.native if isinstance(module.native, NativeHost) else None
    if native is not None and native.backend is not None and native.source is not None:
        sources[_HOST] = native.backend, native.source
    try:
        backends = {backend.name: backend for backend, _ in sources.values()}
        facts = {name: facts_of(backend) for name, backend in backends.items()}
        places = {
            name: KernelRecord(
                backend.name, facts[backend.name], session.pool.address(backend, source), source.key
            )
            for name, (backend, source) in sources.items()
        }
    except Exception as error:
        return f"a backend cannot describe itself ({type(error).__name__})"
    donated = tuple(item.index for item in aten.inputs if item.donated)
    place = places.pop(_HOST, None)
    host = HostRecord(native.program, place) if native is not None and place is not None else None
    made = packed({name: kernel.built for name, kernel in kernels.items()})
    report = replace(report, recording=None)
    return GraphRecord(
        module.text, places, constants, report, donated, host, made, session.settings, module.collectives
    )
