"""AOTAutograd: from a Dynamo graph to functional forward and backward graphs.

`aot_module_simplified` is called directly. The helper that torch offers to backends drops `options` and
`mode`, and imports a large part of another compiler; its remaining duties (counters, shielding the backward
from Dynamo, nested inputs) are done by `frontend.capture`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._guards import TracingContext
from torch.fx import GraphModule, Node

from polyfuse.torch_compat.captures.shared_inputs import SharedInputs
from polyfuse.torch_compat.captures.written_inputs import input_memory, with_written_apart
from polyfuse.torch_compat.strides import has_overlaps
from polyfuse.torch_compat.tracing import shapes
from polyfuse.torch_compat.tracing.output_views import views_of_inputs, with_views
from polyfuse.torch_compat.tracing.written_strides import preserved_strides
from polyfuse.torch_compat.training_calls import direct_calls

if TYPE_CHECKING:
    from polyfuse.torch_compat.tracing.aot_cache import GraphCacheEntry


class GraphCompiler(Protocol):
    """What AOTAutograd calls with each finished graph and its fake inputs."""

    def __call__(self, gm: GraphModule, inputs: Sequence[Any], /) -> Callable[[list[Any]], Sequence[Any]]: ...


class Partitioner(Protocol):
    """Splits a joint graph into forward and backward."""

    def __call__(
        self, joint: GraphModule, inputs: Sequence[Any], /, **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]: ...


def compile_module(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    forward: GraphCompiler,
    backward: GraphCompiler,
    inference: GraphCompiler,
    partition: Partitioner,
    decompositions: Mapping[Any, Callable[..., Any]],
    entry: GraphCacheEntry | None = None,
    shared: SharedInputs | None = None,
) -> Callable[..., Any]:
    """Trace `gm` with AOTAutograd and compile what comes out with the given compilers; with the `entry`
    of a graph cache, only if nothing is found under its key. The compilers then return `CachedCode`. `shared`
    are its inputs that overlap, as `shared_and_written` finds them.

    Mutations of inputs stay in the graphs as trailing `aten.copy_`.
    """
    from torch._functorch.aot_autograd import aot_module_simplified

    _check_factors()
    memory = input_memory(gm, example_inputs, () if shared is None else shared.overlapping)
    views = views_of_inputs(gm, of_numbers=shared is not None)
    compilers = {"fw_compiler": forward, "bw_compiler": backward, "inference_compiler": inference}
    scope: AbstractContextManager[None] = nullcontext()
    if entry is not None:
        from polyfuse.torch_compat.tracing.aot_cache import caching, serialisable

        compilers = {name: serialisable(compiler) for name, compiler in compilers.items()}
        scope = caching(replace(entry, views=views, memory=memory))
    tracing = nullcontext() if shared is None else shared.traced()
    with (
        scope,
        direct_calls(),
        preserved_strides(gm),
        _remainders_of_numbers(gm),
        _sizes_of_numbers(),
        _gradients_apart(),
        tracing,
    ):
        compiled: Callable[..., Any] = aot_module_simplified(
            gm,
            list(example_inputs),
            **compilers,
            partition_fn=partition,
            decompositions=dict(decompositions),
            keep_inference_input_mutations=True,
        )
    compiled = with_views(compiled, views)
    if shared is not None:
        compiled = shared.checked(compiled)
    if not isinstance(gm, GraphModule):  # of nested inputs, which come in a list that the call empties
        return compiled
    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    return with_written_apart(compiled, gm.forward, memory, metadata)


@cache
def _check_factors() -> None:
    """Have traced graphs check whether matrices could be factored, as `torch.linalg.cholesky` does.

    The check returns nothing. Before torch 2.12 nothing says that it has an effect, so that tracing drops it,
    and a matrix that is not positive raises nothing.
    """
    from torch._higher_order_ops import effects

    name = "aten::_linalg_check_errors"
    if effects._get_effect(name) is None:
        effects._register_effectful_op(name, effects._EffectType.ORDERED)


@contextmanager
def _remainders_of_numbers(gm: Any) -> Iterator[None]:
    """Inside, graphs may compute remainders of numbers in floating point, as `x * (x.sum().item() % 3)` does
    with `capture_scalar_outputs`.

    AOTAutograd makes operators on tensors of such arithmetic, by a table that lacks remainders and so ends in
    an `AttributeError`. `torch.remainder` has the sign of the divisor, as Python's. Dynamo holds a lock while
    it compiles a frame, so that no other compile sees the entry.
    """
    from torch.utils._sympy.reference import TensorReferenceAnalysis

    graph = getattr(gm, "gm", gm).graph  # what unpacks nested inputs holds it
    infinite = _unevaluated() if any(map(_is_of_infinity, graph.nodes)) else nullcontext()
    if hasattr(TensorReferenceAnalysis, "python_mod"):
        with infinite:
            yield
        return
    table: Any = TensorReferenceAnalysis
    table.python_mod = staticmethod(lambda left, right: torch.ops.aten.remainder.Tensor(left, right))
    try:
        with infinite:
            yield
    finally:
        del table.python_mod


def _is_of_infinity(node: Node) -> bool:
    """Whether the node is a remainder by an infinite number."""
    return node.target is operator.mod and isinstance(node.args[1], float) and math.isinf(node.args[1])


@contextmanager
def _unevaluated() -> Iterator[None]:
    """Inside, remainders of symbols by infinities are computed when the graph runs.

    torch takes each for zero, since the quotient is an integer; it is the dividend or the divisor.
    """
    from sympy.core.cache import clear_cache
    from torch.utils._sympy.functions import PythonMod

    kind: Any = PythonMod
    before = kind.__dict__["eval"]

    def evaluated(cls: Any, p: Any, q: Any) -> Any:
        return None if q.is_infinite and not p.is_Number else before.__func__(cls, p, q)

    clear_cache()  # Dynamo had the zero before
    kind.eval = classmethod(evaluated)
    try:
        yield
    finally:
        kind.eval = before


@contextmanager
def _sizes_of_numbers() -> Iterator[None]:
    """Inside, graphs may compute numbers in floating point from any size of their inputs.

    AOTAutograd makes operators on tensors of such arithmetic, `2 / x.numel()` in the gradient of a mean
    square, and looks up each size in it by the node that holds it alone. Where Dynamo passes no such number,
    as for the values of a jagged tensor, there is none, which ends in a `KeyError`. Dynamo holds a lock while
    it compiles a frame, so that no other compile sees the change.
    """
    from torch._functorch._aot_autograd import graph_compile

    # where it is called from until torch 2.13; elsewhere, such graphs raise as they do without a backend
    before = getattr(graph_compile, "tensorify_python_scalars", None)
    if before is None:
        yield
        return

    def with_sizes(gm: GraphModule, *args: Any) -> None:
        _read_sizes(gm)
        before(gm, *args)

    graph_compile.tensorify_python_scalars = with_sizes
    try:
        yield
    finally:
        graph_compile.tensorify_python_scalars = before


@contextmanager
def _gradients_apart() -> Iterator[None]:
    """Inside, gradients of results whose elements share memory are expected in memory of their own.

    AOTAutograd has a gradient laid out as the result is, copied if it is not. Where windows of a result
    overlap, as behind `unfold`, numbers of such a copy overwrite others, and no error says so. Dynamo holds a
    lock while it compiles a frame, so that no other compile sees the change.
    """
    from torch._functorch._aot_autograd import schemas

    kind: Any = schemas.MemoryFormatMeta
    before = kind.__dict__["from_tensor"]

    def expected(tensor: torch.Tensor, *args: Any, **named: Any) -> Any:
        plain = tensor.layout is torch.strided and not shapes.free_symbols(tensor)
        if plain and has_overlaps(tensor.shape, tensor.stride()):
            return kind(memory_format=torch.contiguous_format)
        return before.__func__(tensor, *args, **named)

    kind.from_tensor = staticmethod(expected)
    try:
        yield
    finally:
        kind.from_tensor = before


def _read_sizes(gm: GraphModule) -> None:
    """Have a node behind the inputs hold each size that a floating-point number is computed from."""
    nodes = list(gm.graph.nodes)
    wanted: set[Any] = set()
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymFloat):
            wanted |= value.node.expr.free_symbols
    inputs = [node for node in nodes if node.op == "placeholder"]
    wanted -= {_symbol(node.meta.get("val")) for node in inputs}
    if not wanted:
        return
    with gm.graph.inserting_after(inputs[-1]):
        for node in inputs:
            value = node.meta.get("val")
            for dimension, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                symbol = _symbol(size)
                if symbol in wanted:
                    wanted.discard(symbol)
                    read = gm.graph.call_function(torch.ops.aten.sym_size.int, (node, dimension))
                    read.meta["val"] = size


def _symbol(value: Any) -> Any:
    """The expression of an integer that is known when the graph runs; of anything else None."""
    return value.node.expr if isinstance(value, torch.SymInt) else None


@contextmanager
def backward_at_once() -> Iterator[None]:
    """Have AOTAutograd compile a backward together with its forward, not when it first runs."""
    from torch._functorch import config

    with config.patch({"force_non_lazy_backward_lowering": True}):
        yield


def min_cut_partition(
    joint: GraphModule, inputs: Sequence[Any], *, saved: Collection[str] | None = None, **kwargs: Any
) -> tuple[GraphModule, GraphModule]:
    """torch's partitioner: recompute cheap fusible work in the backward instead of saving it.

    Args:
        saved: names of nodes that are not recomputed, while what else matmuls of the backward read may be.
            None: nothing that they read is.
    """
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch.utils.checkpoint import CheckpointPolicy

    for node in joint.graph.nodes:
        if saved is not None and node.name in saved:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    with config.patch({} if saved is None else {"ban_recompute_materialized_backward": False}):
        return min_cut_rematerialization_partition(joint, inputs, **kwargs)


def save_or_select_again(value: Node, selecting: Sequence[Node]) -> bool:
    """Have the partitioner save a call's result, and return whether it does: where the program has it
    computed anew, so are the calls that select numbers of it."""
    from torch.utils.checkpoint import CheckpointPolicy as Policy

    policy = value.meta.get("recompute")
    if policy not in (Policy.MUST_RECOMPUTE, Policy.PREFER_RECOMPUTE):
        value.meta["recompute"] = Policy.MUST_SAVE
        return True
    for node in selecting:
        node.meta["recompute"] = policy
        for user in node.users:
            if user.target is operator.getitem:
                user.meta["recompute"] = policy
    return False


@contextmanager
def partition_options(*, own_cse: bool) -> Iterator[None]:
    """Partitioner settings for one compile."""
    from torch._functorch import config

    # Tokens that order effects are made inside the graphs: as inputs and outputs they would shift the
    # positions of everything else that AOTAutograd knows about outputs.
    changes: dict[str, Any] = {"unlift_effect_tokens": True}
    if own_cse:
        changes["cse"] = False
    with config.patch(changes):
        yield


def stored_by_torch() -> bool:
    """Whether torch itself stores what is compiled now: `aot_compile` does, and `caching_precompile`."""
    import torch._dynamo.config as dynamo_config

    return compiled_ahead() or bool(getattr(dynamo_config, "caching_precompile", False))


def compiled_ahead() -> bool:
    """Whether `aot_compile` stores what is compiled now, with all guards: it is never looked up by a key."""
    from torch._functorch import config

    return bool(getattr(config, "bypass_autograd_cache_key", False))


def saved_ahead(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph as `aot_compile` expects it of backends; from torch 2.12 on it wraps by itself what
    has a method to be serialised.
    """
    if torch.__version__ >= (2, 12) or not compiled_ahead() or getattr(compiled, "serialize", None) is None:
        return compiled
    from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable

    wrapped: Callable[..., Any] = BundledAOTAutogradSerializableCallable(compiled)
    return wrapped


def cache_record(compiled: Any) -> Any:
    """What the graph cache stores of a compiled graph, or a text that says why it is bypassed."""
    return getattr(compiled, "cache_record", "it falls back to eager")


def storable(
    compiled: Any, results: Sequence[tuple[Any, Any]] | None = None, donated: tuple[int, ...] = ()
) -> Any:
    """A compiled graph as `CachedCode`: with what the graph cache stores of it, or why it is bypassed.

    Args:
        results: as they were traced, each with its strides; None: it is a backward.
        donated: of a backward, positions of inputs that it may overwrite.
    """
    from polyfuse.torch_compat.captures.bucket_layouts import is_awaited, layouts_of
    from polyfuse.torch_compat.tracing.aot_cache import CachedCode

    record = cache_record(compiled)
    if isinstance(record, str):
        return CachedCode(compiled, None, record)
    if results is None:
        return CachedCode(compiled, record, donated=donated)
    if not is_awaited():
        return CachedCode(compiled, record)
    first = layouts_of(results)
    if first is None:
        return CachedCode(compiled, None, "it is a bucket, and sizes of its results vary")
    return CachedCode(compiled, record, first=first)
