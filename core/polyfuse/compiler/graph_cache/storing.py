"""What is stored of a graph that was compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from polyfuse.checking.calls import called_from
from polyfuse.compiler.graph_cache.record import CalledRecord, GraphRecord, HostRecord, KernelRecord, facts_of
from polyfuse.compiler.native_host import NativeHost
from polyfuse.compiler.packages.kernels import packed
from polyfuse.compiler.reports.report import GraphReport
from polyfuse.compiler.session import CompileSession
from polyfuse.compiler.sizes.stored import sized_record
from polyfuse.frontend.graph import AtenGraph
from polyfuse.runtime.program_code import stored_code
from polyfuse.runtime.subgraphs import Subgraph
from polyfuse.schedule import is_unasked
from polyfuse.torch_compat.tracing.aot import cache_record, compiled_ahead, stored_by_torch
from polyfuse.torch_compat.tracing.dynamo import assumes_fractions, assumes_shared_memory

if TYPE_CHECKING:
    from polyfuse.compiler.built import Built, BuiltGraph
    from polyfuse.compiler.sizes.classes import ClassKey

# Among the kernels of a graph, its host program: no kernel has an empty name.
_HOST = ""

# Larger constants are not copied into an entry.
_CONSTANT_BYTES = 1 << 20


def record_or_reason(aten: AtenGraph, built: BuiltGraph, session: CompileSession) -> GraphRecord | str:
    """What is stored of a compiled graph, or why nothing is."""
    settings = session.settings
    if not (settings.graph_cache or stored_by_torch()):
        return "it was not compiled for the graph cache"
    parts = (built, *(part for _, part in built.ahead.values()))
    if any(is_unasked(k.emitted.backend, settings) for part in parts for k in part.kernels.values()):
        return "a kernel of it is interpreted, of which each process warns"
    if settings.autotunes and (session.tuner.cut_short or session.tuner.exhausted):
        return "its autotuning ran out of time, or was only looked up, and goes on in a later process"
    if assumes_fractions() and not compiled_ahead():
        return "it holds for some values alone of a floating-point number that varies"
    if assumes_shared_memory():
        return "it holds only while its inputs share memory as they did, which is guarded elsewhere"
    donated = tuple(item.index for item in aten.inputs if item.donated)
    record = _record_of(built, built.report, session)
    if isinstance(record, str) or built.sized is None:
        return record if isinstance(record, str) else replace(record, donated=donated)
    ahead: dict[ClassKey, GraphRecord] = {}
    for key, (_, part) in built.ahead.items():
        found = _record_of(part, built.report, session)
        if isinstance(found, str):
            return found
        ahead[key] = found
    return replace(record, donated=donated, sized=sized_record(built.sized, ahead))


def _record_of(built: Built, report: GraphReport, session: CompileSession) -> GraphRecord | str:
    module, kernels, objects = built.module, built.kernels, built.layers.few.graph.objects
    constants = {key: objects[key] for key in module.namespace["OBJECTS"].values()}
    called: dict[str, CalledRecord] = {}
    for key in [key for key, value in constants.items() if isinstance(value, Subgraph)]:
        subgraph = constants.pop(key)
        its_own = cache_record(subgraph.run)
        if isinstance(its_own, str):
            return its_own
        called[key] = CalledRecord(its_own, subgraph.layouts, subgraph.single, subgraph.name)
    tensors = [value for value in constants.values() if not getattr(value, "storable", False)]
    for value in tensors:
        if type(value) is not torch.Tensor or value.layout != torch.strided or value.requires_grad:
            return f"its program refers to a {type(value).__name__}"
    if sum(value.nbytes for value in tensors) > _CONSTANT_BYTES:
        return "its constants are large"
    sources = {name: (kernel.emitted.backend, kernel.emitted.source) for name, kernel in kernels.items()}
    native = module.native if isinstance(module.native, NativeHost) else None
    if native is not None and native.backend is not None and native.source is not None:
        sources[_HOST] = native.backend, native.source
    try:
        backends = {backend.name: backend for backend, _ in sources.values()}
        facts = {name: facts_of(backend) for name, backend in backends.items()}
        records = {
            name: KernelRecord(
                backend.name, facts[backend.name], session.pool.address(backend, source), source.key
            )
            for name, (backend, source) in sources.items()
        }
    except Exception as error:
        return f"a backend cannot describe itself ({type(error).__name__})"
    host_record = records.pop(_HOST, None)
    host = HostRecord(native.program, host_record) if native is not None and host_record is not None else None
    made = packed({name: kernel.built for name, kernel in kernels.items()})
    report = replace(report, recording=None, sizes=None)
    return GraphRecord(
        *(module.text, records, constants, report, (), host, made, session.settings, module.collectives),
        called=called,
        packed=module.packed_inputs,
        code=b"" if module.code is None else stored_code(module.code),
        written=called_from(built.layers.few.graph.nodes, objects),
    )
