"""Functions that operators call, such as branches of a condition or bodies of loops: graphs of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.log import get_logger
from polyfuse.compiler.offered_rewrites import OfferedRewrites
from polyfuse.compiler.session import CompileSession
from polyfuse.frontend.describe import mutated_placeholders, output_node
from polyfuse.frontend.graph import AtenGraph, BoxedCallable
from polyfuse.frontend.traced import compile_traced
from polyfuse.lowering.calls.host import CALLERS
from polyfuse.runtime.subgraphs import DENSE, Layout, Subgraph
from polyfuse.symbolic import contiguous_strides
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fx, shapes

_log = get_logger("compiler")

Compiler: TypeAlias = Callable[[AtenGraph, CompileSession], BoxedCallable]


def compile_subgraphs(aten: AtenGraph, session: CompileSession, compiler: Compiler) -> Mapping[str, Subgraph]:
    """The functions that operators of a graph call, compiled, by the names of their modules. One that cannot
    be compiled is left out and runs in eager mode.

    Args:
        compiler: all stages for one graph; raises what a stage raises.
    """
    found: dict[str, Subgraph] = {}
    for name in _called(aten):
        module = fx.get_constant(aten.module, name)
        if name in found or not isinstance(module, GraphModule):
            continue
        body = _compiled(f"{aten.name}_{name.replace('.', '_')}", module, aten.packaged, session, compiler)
        if body is not None:
            found[name] = body
    return found


def _called(aten: AtenGraph) -> Iterator[str]:
    for node in aten.module.graph.nodes:
        if node.op == "call_function" and ops.op_name(node.target) in CALLERS:
            for argument in node.args:
                if isinstance(argument, Node) and argument.op == "get_attr":
                    yield str(argument.target)


def _compiled(
    name: str, module: GraphModule, packaged: bool, session: CompileSession, compiler: Compiler
) -> Subgraph | None:
    layouts = [_layout(value) for value in fx.placeholder_values(module.graph)]
    if _UNKNOWN in layouts or mutated_placeholders(module):
        _log.info("%s runs in eager mode: it writes to its arguments, or nobody can say how they lie", name)
        return None
    # rewriting changes the graph, and the operator keeps its own
    mine = fx.copy_module(module)
    (result,) = output_node(mine).args
    try:
        run = compile_traced(
            mine,
            inner=lambda graph: compiler(replace(graph, packaged=packaged), session),
            settings=session.settings,
            name=name,
            more=OfferedRewrites(session.extensions),
        )
    except PolyfuseError as error:
        # a size that only the enclosing graph knows, for one
        _log.info("%s runs in eager mode: %s", name, error)
        return None
    return Subgraph(run, tuple(layouts), not isinstance(result, tuple | list), name)


_UNKNOWN = "unknown"


def _layout(value: Any) -> Layout:
    if not isinstance(value, torch.Tensor):
        return None
    if value.layout is not torch.strided:
        return _UNKNOWN
    size, stride = shapes.exprs_of(value.shape), shapes.exprs_of(value.stride())
    if all(isinstance(n, int) for n in (*size, *stride)):
        return tuple(size), tuple(stride)
    return DENSE if tuple(stride) == contiguous_strides(size) else _UNKNOWN
