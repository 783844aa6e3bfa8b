"""The entry of the frontend: a Dynamo graph in, a callable out, with the inner compiler called in between.

    compile_graph ──▶ AOTAutograd ──▶ joint graph ──partition──▶ forward, backward ──rewrites──▶
    inner(AtenGraph)

AOTAutograd decides when each graph is compiled: an inference graph or a forward at once, a backward when it
first runs (earlier if shapes are dynamic, since compiling it may add guards).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from torch.fx import GraphModule

from polyfuse.frontend.decompositions.decompose import decomposition_table
from polyfuse.frontend.decompositions.forced import (
    decompositions_before_autograd,
    note_unmatched,
    without_forced,
)
from polyfuse.torch_compat.tracing import aot, decomp, dynamo

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.frontend.graph import InnerCompiler, ReadsElements, ReadsNarrow, WantsChannelsLast
    from polyfuse.frontend.rewrites.passes import MoreRewrites
    from polyfuse.frontend.traced import Traced
    from polyfuse.torch_compat.captures.shared_inputs import SharedInputs
    from polyfuse.torch_compat.tracing.aot_cache import GraphCacheEntry

Lookup: TypeAlias = Callable[[Any, Sequence[Any]], "GraphCacheEntry | None"]
"""From a captured graph and its inputs to its entry in the graph cache; None: it bypasses the cache."""


def compile_graph(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    inner: InnerCompiler,
    settings: Settings,
    more: MoreRewrites | None = None,
    channels_last: WantsChannelsLast | None = None,
    reads_narrow: ReadsNarrow | None = None,
    elementwise: ReadsElements | None = None,
    lookup: Lookup | None = None,
    shared: SharedInputs | None = None,
) -> Callable[..., Any]:
    """Compile what Dynamo captured: trace it, split off the backward, rewrite, and call `inner` with each
    graph. `more` are rewrites that run after those of this package; `channels_last` says of the activation
    and the weight of a convolution, and of whether gradients are needed, what should have its channels last.
    `reads_narrow` says where freezing leaves weights of fewer bits as they are for few rows.
    `elementwise` says which operators of others compute element by element.
    `lookup` gives the graph's entry in the graph cache; `shared` are inputs that overlap, if it may write.

    The result takes the arguments of `gm` and is differentiable where `gm` is.
    """
    again = partial(
        compile_graph,
        inner=inner,
        settings=settings,
        more=more,
        channels_last=channels_last,
        reads_narrow=reads_narrow,
        elementwise=elementwise,
        lookup=lookup,
    )
    if not dynamo.returns_flat_tuple(gm):
        return dynamo.flatten_results(gm, lambda flat: again(flat, example_inputs))
    if dynamo.has_nested_inputs(example_inputs):
        return dynamo.flatten_inputs(gm, example_inputs, again)
    entry = lookup(gm, example_inputs) if lookup is not None else None
    ordinal = dynamo.graph_ordinal()

    @cache
    def traced() -> Traced:
        from polyfuse.frontend.traced import Traced  # a graph that is found is not traced

        asks = more, channels_last, reads_narrow, elementwise
        return Traced(inner, settings, ordinal, *asks, cached=entry is not None)

    def partition(
        joint: GraphModule, inputs: Sequence[Any], /, **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        return traced().partition(joint, inputs, **kwargs)

    dynamo.count_aot("total")
    try:
        options = aot.partition_options(own_cse=settings.graph_rewrites)
        note_unmatched(settings.force_fallback)
        with options, decomp.undecomposed(*decompositions_before_autograd(settings.force_fallback)):
            compiled = aot.compile_module(
                gm,
                example_inputs,
                forward=lambda gm, inputs: traced().forward(gm, inputs),
                # autograd calls this from its own thread, possibly under a live Dynamo: it is not traced
                backward=dynamo.disable(
                    lambda gm, inputs: traced().backward(gm, inputs),
                    reason="the compiler itself is not traced",
                ),
                inference=lambda gm, inputs: traced().inference(gm, inputs),
                partition=partition,
                decompositions=without_forced(
                    decomposition_table(settings.numerics), settings.force_fallback
                ),
                entry=entry,
                shared=shared,
            )
    except dynamo.restart_exceptions():
        raise
    except Exception:
        dynamo.count_aot("not_ok")
        raise
    dynamo.count_aot("ok")
    return dynamo.disable(compiled, reason="already compiled")
