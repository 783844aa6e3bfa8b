"""What AOTAutograd calls: each graph that it traced is rewritten, described and handed to the compiler.

A captured graph that is found in the graph cache (`captured.py`) needs none of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from polyfuse.base.log import get_logger
from polyfuse.base.settings import Settings
from polyfuse.base.text import PassTexts
from polyfuse.frontend.describe import describe, output_args
from polyfuse.frontend.freezing.freeze import freeze
from polyfuse.frontend.freezing.transposed import (
    split_transposed,
    stays_as_traced,
    transposed_lines_as_images,
)
from polyfuse.frontend.graph import (
    AtenGraph,
    BoxedCallable,
    ChannelsLast,
    GraphKind,
    InnerCompiler,
    Note,
    ReadsElements,
    ReadsNarrow,
    WantsChannelsLast,
)
from polyfuse.frontend.rewrites.channels_last import spread_channels_last
from polyfuse.frontend.rewrites.passes import MoreRewrites, rewrite_graph
from polyfuse.frontend.rewrites.tools import Rewriting
from polyfuse.frontend.saved_values import (
    SHARE,
    better_saved,
    bytes_saved,
    bytes_saved_by_eager,
    copy_overwritten,
    narrow_positions,
    save_compared,
)
from polyfuse.frontend.shared_arguments import note_shared_arguments
from polyfuse.runtime.frozen import FrozenProgram, FrozenValues
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import aot, dynamo, fake, fx, shapes
from polyfuse.torch_compat.tracing.structured import is_traced
from polyfuse.torch_compat.training_calls import for_batches

_log = get_logger("frontend")


def compile_traced(
    module: GraphModule,
    *,
    inner: InnerCompiler,
    settings: Settings,
    name: str = "graph",
    static: Sequence[int] = (),
    more: MoreRewrites | None = None,
    channels_last: WantsChannelsLast | None = None,
    elementwise: ReadsElements | None = None,
    reads_narrow: ReadsNarrow | None = None,
    fold: Callable[[FrozenValues], None] | None = None,
) -> BoxedCallable:
    """Compile a functional ATen graph made elsewhere, such as by `torch.export`, for inference; nodes must
    carry fake values.

    Args:
        fold: with the option `freezing`, called with what follows from the `static` inputs. The compiled
            graph takes these values behind its inputs, and its `packed_inputs` behind them; whoever gave
            `fold` computes them. Without it, nothing is folded.
    """
    note_shared_arguments(module)
    _lay_out(module, settings, channels_last, elementwise, training=False)
    mode = fake.detect_fake_mode(fx.placeholder_values(module.graph))
    texts = PassTexts(bool(settings.dump) or is_traced())
    # nothing is packed: what packs, and reads it, might not be there where the result runs
    rewrites = _rewritten(module, "inference", settings, more, texts)
    given = None
    if fold is not None and settings.freezing:
        count = len(fx.placeholder_values(module.graph))
        frozen = freeze(module, static, settings, reads_narrow) or FrozenValues()
        static = (*static, *range(count, count + len(frozen.layouts)))
        rewrites = (*rewrites, ("freezing", len(frozen.layouts)))
        given = 0  # all values are there before a call, and what is not read need not be
        fold(frozen)
    graph = describe(
        module,
        "inference",
        name=name,
        fake_mode=mode,
        static=static,
        rewrites=rewrites,
        passes=texts.made,
        given=given,
    )
    return fx.mark_boxed(inner(graph))


@dataclass(frozen=True)
class Traced:
    """The callbacks AOTAutograd gets, for one Dynamo graph."""

    inner: InnerCompiler
    settings: Settings
    ordinal: int
    """Which of the graphs of one Dynamo compile this is."""
    more: MoreRewrites | None = None
    channels_last: WantsChannelsLast | None = None
    reads_narrow: ReadsNarrow | None = None
    elementwise: ReadsElements | None = None
    cached: bool = False
    """Whether what is compiled goes into the graph cache."""

    def inference(self, gm: GraphModule, inputs: Sequence[Any]) -> BoxedCallable:
        note_shared_arguments(gm)
        _lay_out(gm, self.settings, self.channels_last, self.elementwise, training=False)
        return self._compile(gm, inputs, "inference")

    def forward(self, gm: GraphModule, inputs: Sequence[Any]) -> BoxedCallable:
        return self._compile(gm, inputs, "forward")

    def backward(self, gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        # autograd may call the result under a live Dynamo, which must not trace it
        compiled = for_batches(self._compile(gm, inputs, "backward"), dynamo.donated_backward_inputs())
        return fx.mark_boxed(dynamo.disable(compiled, reason="already compiled"))

    def partition(
        self, joint: GraphModule, inputs: Sequence[Any], /, **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        """Simplify the joint graph, so that less is saved, then split it.

        Operands of the backward's matmuls (results of norms and activations) are saved beside what they are
        made of. Where that is as much as eager mode saves, some of them are computed again.
        """
        eager = bytes_saved_by_eager(joint)
        note_shared_arguments(joint)
        _lay_out(joint, self.settings, self.channels_last, self.elementwise, training=True)
        if self.settings.graph_rewrites:
            rewrite_graph(joint, self.settings, stage="joint", more=self.more)
        save_compared(joint)
        narrow_positions(joint)
        results = kwargs["num_fwd_outputs"]
        forward, backward = aot.min_cut_partition(joint, inputs, **kwargs)
        saved = None if eager is None else better_saved(forward, backward, results, SHARE * eager)
        if saved is not None:
            less = aot.min_cut_partition(joint, inputs, saved=saved, **kwargs)
            if bytes_saved(less[0], results) < bytes_saved(forward, results):
                forward, backward = less
        copy_overwritten(forward, backward, results)
        return forward, backward

    def _name(self, kind: GraphKind) -> str:
        number = dynamo.compile_id().replace("/", "_") or "0"
        return f"{kind}_{number}" + (f"_part{self.ordinal}" if self.ordinal else "")

    def _compile(self, gm: GraphModule, inputs: Sequence[Any], kind: GraphKind) -> BoxedCallable:
        mode = dynamo.tracing_fake_mode() or fake.detect_fake_mode(inputs)
        _adopt_inputs(gm, inputs, mode)
        texts = PassTexts(bool(self.settings.dump) or is_traced())
        notes: list[Note] = []
        static = tuple(dynamo.static_input_indices()) if kind != "backward" else ()
        rewrites = _rewritten(gm, kind, self.settings, self.more, texts, notes, static)
        donated = dynamo.donated_backward_inputs() if kind == "backward" else ()
        freezing = self.settings.freezing and kind == "inference"
        frozen = freeze(gm, static, self.settings, self.reads_narrow) if freezing else None
        if frozen is not None:
            static = (*static, *range(len(inputs), len(inputs) + len(frozen.layouts)))
            rewrites = (*rewrites, ("freezing", len(frozen.layouts)))
        graph = describe(
            gm,
            kind,
            name=self._name(kind),
            fake_mode=mode,
            static=static,
            donated=donated,
            user_outputs=dynamo.num_user_outputs() if kind == "forward" else None,
            rewrites=rewrites,
            passes=texts.made,
            notes=notes,
            given=len(inputs) if freezing else None,
        )
        with fake.real_tensors():
            compiled = self.inner(graph)
        results: list[tuple[Any, Any]] | None = None
        if kind != "backward":
            strides = _reported_strides(graph, compiled)
            dynamo.report_output_strides(strides)
            results = list(zip(_traced_results(graph), strides, strict=True))
        packed = getattr(compiled, "packed_inputs", None)
        if packed is not None:
            frozen = (frozen or FrozenValues()).packed(packed, len(inputs))
        if frozen is not None:
            compiled = FrozenProgram(compiled, frozen, frozen.sources)
        if self.cached:
            compiled = aot.storable(compiled, results, donated)
        return fx.mark_boxed(compiled)


def _lay_out(
    gm: GraphModule,
    settings: Settings,
    wants: WantsChannelsLast | None,
    elementwise: ReadsElements | None,
    training: bool,
) -> None:
    """Choose layouts: before the split, so that both sides know what the forward saves."""
    if wants is None or not settings.graph_rewrites or settings.fuel is not None:
        return
    light = settings.channels_last == "auto" and settings.gemm != "generated"

    def given(x: torch.Tensor, weight: torch.Tensor) -> ChannelsLast:
        return wants(x, weight, training)

    if training:
        count = spread_channels_last(gm, given, light, elementwise)
    else:
        state = Rewriting(gm, settings, "inference")
        transposed_lines_as_images(state, given)
        stays = partial(stays_as_traced, settings=settings)
        count = spread_channels_last(gm, given, light, elementwise, stays)
        split_transposed(state)
    if count:
        _log.info("%d convolutions have their channels last", count)


def _rewritten(
    gm: GraphModule,
    kind: GraphKind,
    settings: Settings,
    more: MoreRewrites | None,
    texts: PassTexts,
    notes: list[Note] | None = None,
    static: Sequence[int] = (),
) -> tuple[tuple[str, int], ...]:
    """How often each rewrite applied."""
    if not settings.graph_rewrites:
        return ()
    return rewrite_graph(gm, settings, stage=kind, more=more, texts=texts, notes=notes, static=static)


def _adopt_inputs(gm: GraphModule, inputs: Sequence[Any], mode: Any) -> None:
    """Take over the inputs AOTAutograd compiles for, where they differ from those the graph was traced with.

    A forward may have chosen other strides for what it saves; the backward's values are then computed anew.
    """
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    restrided = False
    for node, value in zip(placeholders, inputs, strict=True):
        traced = node.meta.get("val")
        if traced is None or isinstance(traced, torch.Tensor) != isinstance(value, torch.Tensor):
            node.meta["val"] = fake.fakify(mode, value) if mode is not None else value
        elif isinstance(traced, torch.Tensor) and fake.is_fake(value) and _strides(traced) != _strides(value):
            node.meta["val"] = value
            restrided = True
    if restrided:
        fake.repropagate(gm, mode)
    _complete(gm, mode)


def _complete(gm: GraphModule, mode: Any) -> None:
    """Give calls their values that AOTAutograd made without: random operators in checkpointed regions, which
    it wraps when it divides the graph.
    """
    for node in gm.graph.nodes:
        wrapped = isinstance(node.target, ops.HigherOrderOperator) or node.target is operator.getitem
        if wrapped and "val" not in node.meta:
            args, kwargs = fx.value_of(node.args), fx.value_of(node.kwargs)
            node.meta["val"] = fake.fake_evaluate(mode, node.target, args, kwargs)


def _strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    return shapes.exprs_of(tensor.stride())


def _reported_strides(graph: AtenGraph, compiled: Any) -> list[tuple[int, ...] | None]:
    """Strides of every output as plain ints, None where not a tensor or not constant."""
    chosen = getattr(compiled, "output_strides", None)
    result: list[tuple[int, ...] | None] = []
    for position, value in enumerate(_traced_results(graph)):
        strides = chosen[position] if chosen is not None else None
        if strides is None and isinstance(value, torch.Tensor):
            strides = _strides(value)
        constant = strides is not None and all(isinstance(s, int) for s in strides)
        result.append(tuple(strides) if strides is not None and constant else None)
    return result


def _traced_results(graph: AtenGraph) -> list[Any]:
    args = output_args(graph.module)
    return [arg.meta.get("val") if isinstance(arg, torch.fx.Node) else arg for arg in args]
