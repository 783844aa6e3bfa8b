"""Dynamo: counters, tracing context, keeping Dynamo out of our functions, its table of backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache, wraps
from types import FrameType, FunctionType
from typing import Any, cast
from weakref import WeakSet

import torch
from torch._guards import CompileContext, TracingContext

from polyfuse.torch_compat.tracing import shapes


def disable(fn: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """Keep Dynamo from tracing `fn`, as `torch.compiler.disable` does, in fewer steps."""
    from torch._C._dynamo.eval_frame import set_eval_frame
    from torch._dynamo.eval_frame import innermost_fn, skip_code

    run = innermost_fn(fn)

    @wraps(run)
    def untraced(*args: Any, **named: Any) -> Any:
        before = set_eval_frame(None)
        try:
            return run(*args, **named)
        finally:
            set_eval_frame(before)

    marks: Any = untraced
    skip_code(marks.__code__)  # the frame around it is not looked at either
    marks._torchdynamo_disable = marks._torchdynamo_disable_recursive = True
    marks._torchdynamo_disable_msg = reason
    marks._torchdynamo_orig_callable = run
    marks._torchdynamo_wrapper_id = id(untraced)
    _OURS.add(untraced)
    return untraced


_OURS: WeakSet[Callable[..., Any]] = WeakSet()


def disable_again(disabled: Callable[..., Any]) -> Callable[..., Any]:
    """torch's `disable`, which leaves what is disabled already as it is."""

    def disable_if_needed(fn: Any = None, *args: Any, **named: Any) -> Any:
        return fn if isinstance(fn, FunctionType) and fn in _OURS else disabled(fn, *args, **named)

    return disable_if_needed


def count_aot(event: str) -> None:
    """Advance AOTAutograd's counter `total`, `ok` or `not_ok`.

    DDPOptimizer compares `total` before and after a compile to learn whether the backend went
    through AOTAutograd; without it the optimizer feeds real tensors to later buckets.
    """
    from torch._dynamo.utils import counters

    counters["aot_autograd"][event] += 1


def restart_exceptions() -> tuple[type[BaseException], ...]:
    """Exceptions by which torch asks Dynamo to trace again; they must pass through unharmed."""
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis

    return (TensorifyScalarRestartAnalysis,)


def has_nested_inputs(inputs: Sequence[Any]) -> bool:
    """True if some graph input is a container (compiled autograd passes a list of tensors)."""
    return any(isinstance(x, list | tuple | dict) for x in inputs)


def flatten_inputs(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], compile_flat: Callable[[Any, Any], Callable[..., Any]]
) -> Callable[..., Any]:
    """Compile a graph with nested inputs by giving `compile_flat` a flat view of it."""
    from torch._dynamo.utils import flatten_graph_inputs

    return flatten_graph_inputs(gm, inputs, compile_flat)


def differentiates_forward() -> bool:
    """Whether forward-mode differentiation is on around the graph being compiled, which is guarded: a call
    where that is otherwise is another graph's."""
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.source import GlobalStateSource

    context = TracingContext.try_get()
    if context is not None:
        guard = GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL)
        context.guards_context.dynamo_guards.add(guard)
    return bool(torch.autograd.forward_ad._current_level >= 0)


def guard_offsets(gm: Any) -> None:
    """Let Dynamo guard where its inputs begin in their memory, if the graph views something by an offset from
    the beginning of that memory on: `as_strided` with an offset. Dynamo guards sizes and strides alone."""
    context = TracingContext.try_get()
    if context is None or not isinstance(gm, torch.fx.GraphModule) or not _views_by_offset(gm):
        return
    for node in gm.graph.find_nodes(op="placeholder"):
        argument = node.meta.get("grapharg")
        value, source = node.meta.get("example_value"), getattr(argument, "source", None)
        if source is not None and isinstance(value, torch.Tensor) and value.layout is torch.strided:
            guard_offset(source, context)


def guard_offset(source: Any, context: TracingContext) -> None:
    """Let Dynamo guard where one input begins in its memory."""
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.source import TensorProperty, TensorPropertySource

    offset = TensorPropertySource(source, TensorProperty.STORAGE_OFFSET)
    context.guards_context.dynamo_guards.add(offset.make_guard(GuardBuilder.EQUALS_MATCH))


def _views_by_offset(gm: torch.fx.GraphModule) -> bool:
    modules = [module for module in gm.modules() if isinstance(module, torch.fx.GraphModule)]
    nodes = (node for module in modules for node in module.graph.nodes)
    return any("as_strided" in str(node.target) for node in nodes if node.op.startswith("call_"))


def shown_as_it_is(error: Exception, frame: FrameType | None) -> Exception:
    """An exception of the same class and message that Dynamo passes to the user as it is, with the traceback
    from `frame` on, where it would wrap others and show its own frames.
    """
    from torch._dynamo.exc import ShortenTraceback

    kind = type(error)
    shown = cast(Any, type(kind.__name__, (kind, ShortenTraceback), {"__module__": kind.__module__}))
    made = shown.__new__(shown, *error.args)
    made.__dict__.update(error.__dict__, first_useful_frame=frame)
    return cast(Exception, made)


def node_count(gm: Any) -> int:
    """How many nodes a graph has, through what `flatten_inputs` and `flatten_results` make of it."""
    graph = getattr(gm, "graph", None) or getattr(getattr(gm, "gm", None), "graph", None)
    return len(graph.nodes) if graph is not None else 0


def watch_compiles(begin: Callable[..., None], end: Callable[..., None]) -> None:
    """Call `begin` when Dynamo starts to trace and compile, and `end` when that is over, however it ends."""
    from torch._dynamo.callback import callback_handler

    if _untraced(begin) not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_untraced(begin))
        callback_handler.register_end_callback(_untraced(end))


@cache
def _untraced(watcher: Callable[..., None]) -> Callable[..., None]:
    # a backward may be compiled where Dynamo is live, which would wait for itself to trace what is called
    return disable(watcher, "it watches Dynamo")


def ends_early(gm: Any) -> bool:
    """Whether a graph ends at a graph break, so that the function goes on behind it."""
    return bool(getattr(getattr(gm, "compile_subgraph_reason", None), "graph_break", False))


def returns_flat_tuple(gm: Any) -> bool:
    """Whether a graph returns a plain tuple of values, as Dynamo's do; who calls a backend may return
    anything."""
    graph = None if isinstance(gm, _FlatResults) else getattr(gm, "graph", None)
    if graph is None or type(graph._codegen) is not torch.fx.graph.CodeGen:
        return graph is None
    output = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    return isinstance(output, list | tuple) and not any(isinstance(x, list | tuple | dict) for x in output)


class _FlatResults(torch.nn.Module):
    """A module whose results are the leaves of those of another, with the structure remembered."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__()
        self.module, self.graph = module, module.graph
        self.structure: Any = None

    def forward(self, *args: Any) -> tuple[Any, ...]:
        leaves, self.structure = torch.utils._pytree.tree_flatten(self.module(*args))
        return tuple(leaves)


def flatten_results(
    gm: torch.fx.GraphModule, compile_flat: Callable[[Any], Callable[..., Any]]
) -> Callable[..., Any]:
    """Compile a graph that returns something else than a plain tuple by giving `compile_flat` one that
    does."""
    flat = _FlatResults(gm)
    compiled = compile_flat(flat)

    def run(*args: Any) -> Any:
        return torch.utils._pytree.tree_unflatten(list(compiled(*args)), flat.structure)

    return run


def with_numbers_as_passed(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> list[Any]:
    """Inputs of a graph with the types in which they come; the graph casts those that it knows in another.

    Dynamo draws a random number of Python's again in each call, traces it in the default type, and passes it
    in double precision.

    Args:
        gm: what Dynamo captured; changed in place.
        example_inputs: what it was captured with, an element for each placeholder.
    """
    from torch._dynamo.source import RandomValueSource

    inputs = list(example_inputs)
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for position, (node, value) in enumerate(zip(nodes, inputs, strict=False)):
        drawn = isinstance(getattr(node.meta.get("grapharg"), "source", None), RandomValueSource)
        if not drawn or value.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            continue
        inputs[position] = value.to(torch.float64)
        with gm.graph.inserting_after(nodes[-1]):
            cast = gm.graph.call_method("to", (node, value.dtype))
        node.replace_all_uses_with(cast, delete_user_cb=lambda user, own=cast: user is not own)
        cast.meta.update(node.meta, example_value=node.meta.get("example_value"))
        cast.meta.pop("grapharg")
        node.meta["example_value"] = inputs[position]
    if any(a is not b for a, b in zip(inputs, example_inputs, strict=True)):
        gm.recompile()
    return inputs


def reset() -> None:
    """Forget every compiled function."""
    import torch._dynamo

    torch._dynamo.reset()


def compile_id() -> str:
    """Dynamo's id of the running compile, such as `0/1`; empty outside one."""
    context = CompileContext.try_get()
    return str(context.compile_id) if context is not None and context.compile_id is not None else ""


def graph_ordinal() -> int:
    """Counts the graphs of one of Dynamo's compiles: 0, 1, ... DDP splits one into several."""
    context = TracingContext.try_get()
    if context is None:
        return 0
    ordinal: int = getattr(context, "_polyfuse_graphs", 0)
    context._polyfuse_graphs = ordinal + 1
    return ordinal


@contextmanager
def context_of_its_own() -> Iterator[None]:
    """A tracing context for one of several graphs that one of Dynamo's becomes: what AOTAutograd notes in it
    of a graph is read when its backward is compiled, which may be after the others.
    """
    from torch._guards import tracing as torch_tracing

    outer: Any = TracingContext.try_get()
    if outer is None:
        yield
        return
    mine: Any = copy(outer)
    mine.fw_metadata = mine.params_flat = mine.output_strides = None
    try:
        with torch_tracing(mine):
            yield
    finally:
        outer._polyfuse_graphs = getattr(mine, "_polyfuse_graphs", 0)


def is_bucket() -> bool:
    """Whether the graph being compiled is one of those into which DDPOptimizer cuts a graph."""
    context = TracingContext.try_get()
    return context is not None and context.ddp_optimizer_ctx is not None


def example_like(node: torch.fx.Node) -> torch.Tensor:
    """An input of the running compile that looks like the result of a node of Dynamo's graph: a tensor with
    static sizes.
    """
    value = node.meta["example_value"]
    with tracing_fake_mode() or value.fake_mode:
        return torch.empty_strided(
            tuple(value.shape),
            tuple(value.stride()),
            dtype=value.dtype,
            device=value.device,
            requires_grad=value.requires_grad,
        )


def written_inputs() -> bool:
    """Whether the graph that was compiled last writes to its inputs."""
    metadata = _forward_metadata()
    return metadata is not None and any(x.mutates_data or x.mutates_metadata for x in metadata.input_info)


def static_input_indices() -> tuple[int, ...]:
    """Flat positions of forward inputs whose address never changes (parameters, buffers)."""
    metadata = _forward_metadata()
    return tuple(sorted(metadata.static_input_indices or ())) if metadata is not None else ()


def donated_backward_inputs() -> tuple[int, ...]:
    """Positions of backward inputs that nobody else holds: their memory may be reused."""
    metadata = _forward_metadata()
    return tuple(metadata.bw_donated_idxs or ()) if metadata is not None else ()


def num_user_outputs() -> int | None:
    """How many leading outputs of a forward the caller sees; the rest is saved for the backward."""
    metadata = _forward_metadata()
    return int(metadata.num_forward) if metadata is not None else None


def _forward_metadata() -> Any:
    context = TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def tracing_fake_mode() -> Any:
    """The fake mode of the running compile, or None."""
    context = TracingContext.try_get()
    return context.fake_mode if context is not None else None


def assumes_fractions() -> bool:
    """Whether the graph being compiled holds for some values alone of a floating-point argument that varies.

    torch hands such a number (a symbol, from the second value on) to the graph as a tensor; where that
    fails, it takes the value of the example, with a guard that Dynamo alone evaluates.
    """
    env = getattr(tracing_fake_mode(), "shape_env", None)
    return env is not None and shapes.compares_fractions(env)


def assumes_shared_memory() -> bool:
    """Whether the graph being compiled has guards on how its inputs share memory, which Dynamo evaluates."""
    context = TracingContext.try_get()
    return context is not None and bool(context.guards_context.aotautograd_guards)


def report_output_strides(strides: Sequence[tuple[int, ...] | None]) -> None:
    """Tell AOTAutograd the strides that a forward's outputs really have (None: as traced).

    The backward is compiled against them, so a forward may choose the layout of what it saves.
    """
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides.clear()
        context.output_strides.extend(strides)


@contextmanager
def tracing(fake_mode: Any) -> Iterator[None]:
    """A tracing context around `fake_mode`, for compiles that do not start in Dynamo."""
    from torch._guards import tracing as torch_tracing

    with torch_tracing(TracingContext(fake_mode)):
        yield


def is_static_tensor(value: torch.Tensor) -> bool:
    """Whether Dynamo says of a tensor that a graph holds that its address never changes."""
    return bool(getattr(value, "_dynamo_static_input_type", None))


def is_static_input(node: torch.fx.Node) -> bool:
    """Whether Dynamo says of an input that its address never changes."""
    return bool((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type"))


def allow_registering_twice(name: str, function: Callable[..., Any]) -> None:
    """Make registering `function` under `name` again no error. To be called while the backend is loaded, that
    is before torch registers it.

    `lookup_backend` asks whether a backend is registered, loads it and registers it, without a lock: the
    second of two threads gets `duplicate name`, or a KeyError between the two tables that the
    first one writes.
    """
    from torch._dynamo.backends import registry

    table = registry._COMPILER_FNS
    if isinstance(table, _Table):
        table.ours[name] = function
    else:
        registry._COMPILER_FNS = _Table(table, {name: function})


class _Table(dict[str, Callable[..., Any]]):
    """Says of our names that they are not registered, and has their functions nevertheless."""

    def __init__(self, others: dict[str, Callable[..., Any]], ours: dict[str, Callable[..., Any]]) -> None:
        super().__init__(others)
        self.ours = ours

    def __contains__(self, name: object) -> bool:
        return name not in self.ours and super().__contains__(name)

    def __missing__(self, name: str) -> Callable[..., Any]:
        return self.ours[name]
