"""From Dynamo's graph to a callable: settings, session, frontend, stages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from polyfuse.base.errors import BackendUnavailableError, InvalidOptionError, UnsupportedError
from polyfuse.base.log import warn_once
from polyfuse.base.settings import Settings
from polyfuse.cache import graph_key
from polyfuse.compiler.captures.pending import note_graph
from polyfuse.compiler.graph_cache.lookup import GraphCache
from polyfuse.compiler.once import compile_lock
from polyfuse.compiler.repeated import compile_repeated
from polyfuse.compiler.reports.progress import compiling
from polyfuse.compiler.reports.watch import note_captured
from polyfuse.compiler.session import CompileSession, decided, session_for
from polyfuse.distributed.costs import load_costs
from polyfuse.frontend.capture import compile_graph
from polyfuse.runtime.ranks.agreement import Agreement, compiling_for_others
from polyfuse.torch_compat.captures.shared_inputs import SharedInputs, shared_and_written
from polyfuse.torch_compat.captures.written_windows import writes_to_windows
from polyfuse.torch_compat.groups import this_rank
from polyfuse.torch_compat.options.counterparts import translated
from polyfuse.torch_compat.tracing.aot import saved_ahead
from polyfuse.torch_compat.tracing.dynamo import (
    differentiates_forward,
    ends_early,
    guard_offsets,
    node_count,
    shown_as_it_is,
    with_numbers_as_passed,
)

if TYPE_CHECKING:
    from torch.fx import Node

    from polyfuse.compiler.offered_rewrites import OfferedRewrites
    from polyfuse.frontend.graph import AtenGraph, BoxedCallable
    from polyfuse.frontend.rewrites.tools import Rewriting
    from polyfuse.torch_compat.tracing.aot_cache import GraphCacheEntry


def compile_fx_graph(
    gm: Any, example_inputs: Sequence[Any], mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile what Dynamo captured.

    Args:
        gm: the captured `torch.fx.GraphModule`.
        example_inputs: what it was captured with.
        mode, options: as given to `torch.compile`; options of torch's own compiler are translated.

    Raises:
        InvalidOptionError: an option or mode that does not exist.
    """
    try:
        session = session_for(decided(Settings.resolve(mode, translated(options))))
    except (InvalidOptionError, BackendUnavailableError) as error:
        raise shown_as_it_is(error, inspect.currentframe()) from None

    example_inputs = with_numbers_as_passed(gm, example_inputs)
    note_graph(gm)

    def whole(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_in_session(gm, example_inputs, session)

    compiled = compile_repeated(gm, example_inputs, session.settings, whole) or whole(gm, example_inputs)
    return saved_ahead(compiled)


def compile_in_session(gm: Any, example_inputs: Sequence[Any], session: CompileSession) -> Callable[..., Any]:
    """Compile what Dynamo captured, or `torch.fx.symbolic_trace` did, with the settings and the kernels of a
    session.
    """
    guard_offsets(gm)
    shared = None if differentiates_forward() else shared_and_written(gm)
    what, fix = _left_to_eager(gm, shared)
    if what:
        return _eager(gm, session.settings, what, fix)
    agreement = _agreement(gm, session) if this_rank() >= 0 else None
    graph_cache = GraphCache(session, agreement)

    def lookup(gm: Any, example_inputs: Sequence[Any]) -> GraphCacheEntry | None:
        entry = graph_cache(gm, example_inputs)
        address = _address(gm, example_inputs, session.settings)
        if graph_cache.key or session.settings.autotunes:  # else nothing is left for others to find
            lock.acquire(graph_cache.key or address, lambda: graph_cache.may_hit)
        if not graph_cache.may_hit:
            if session.settings.autotunes:
                session.tuner.expect()
            device_types = sorted({x.device.type for x in example_inputs if isinstance(x, torch.Tensor)})
            session.expect(device_types, node_count(gm), address)
        return entry

    def inner(graph: AtenGraph) -> BoxedCallable:
        # a graph that is found needs none of it
        from polyfuse.compiler.graph_cache.storing import record_or_reason
        from polyfuse.compiler.stages import compile_aten

        record = partial(record_or_reason, session=session)
        whole = partial(compile_aten, graph, session, agreement, record)
        if graph_cache.refused:
            from polyfuse.compiler.graph_cache.traced import found_or_compiled

            return found_or_compiled(graph, session, agreement, whole)
        compiled = whole()
        graph_cache.note(compiled)
        return compiled

    with (
        compiling_for_others(),
        compile_lock(session) as lock,
        note_captured(gm, example_inputs),
        compiling(session.settings, lambda: _graph_of(gm)),
    ):
        compiled = compile_graph(
            gm,
            example_inputs,
            inner=inner,
            settings=session.settings,
            more=_Offered(session),
            channels_last=session.wants_channels_last,
            reads_narrow=session.reads_narrow,
            elementwise=session.extensions.is_elementwise,
            lookup=lookup,
            shared=shared,
        )
        graph_cache.count_outcome()
    return compiled


@dataclass(frozen=True)
class _Offered:
    """What plugins offer to rewriting. It is imported when a graph is rewritten: one that is found needs none
    of it.
    """

    session: CompileSession

    def __call__(self, state: Rewriting) -> Sequence[tuple[str, int]]:
        return self._rewrites(state)

    def lowers(self, state: Rewriting, node: Node) -> bool:
        """Whether a plugin offers a lowering that takes a call."""
        return self._rewrites.lowers(state, node)

    @property
    def _rewrites(self) -> OfferedRewrites:
        from polyfuse.compiler.offered_rewrites import OfferedRewrites

        return OfferedRewrites(self.session.extensions)


def _left_to_eager(gm: Any, shared: SharedInputs | None) -> tuple[str, str]:
    """What a graph is that runs in eager mode, and what to do about it; empty for all that are compiled.

    Compiled, it would lose the tangents that forward-mode differentiation keeps beside its inputs, or what is
    written to memory that inputs share.
    """
    if differentiates_forward():
        return (
            "a graph within forward-mode differentiation (torch.autograd.forward_ad)",
            "use torch.func.jvp inside the compiled function",
        )
    if shared is not None and shared.refused:
        return f"a graph that writes to {shared.refused}", "pass copies or views"
    if writes_to_windows(gm):
        return (
            "a graph that writes to windows of a tensor (unfold) that overlap or leave gaps",
            "write to slices",
        )
    return "", ""


def _agreement(gm: Any, session: CompileSession) -> Agreement | None:
    """What the ranks of a program compare, if anything; what the session measures is exchanged among them."""
    from polyfuse.compiler.ranks import agreement_of
    from polyfuse.distributed.exchange import exchange_with_ranks

    session.exchange = exchange_with_ranks(
        session.exchange, session.store, session.settings, session.device_types()
    )
    load_costs(session.store.root, session.device_types())
    return agreement_of(session, ends_early(gm))


def _graph_of(gm: Any) -> str:
    """What was captured, for people."""
    return f"a graph of {node_count(gm)} nodes"


def _eager(gm: Any, settings: Settings, what: str, fix: str) -> Callable[..., Any]:
    """The graph as it was captured.

    Raises:
        UnsupportedError: `strict` forbids it.
    """
    if settings.strict:
        raise UnsupportedError(f"{what} runs in eager mode", f"unset strict, or {fix}")
    warn_once("compiler", f"{what} runs in eager mode; {fix} to have it compiled")
    eager: Callable[..., Any] = gm.forward
    return eager


def _address(gm: Any, example_inputs: Sequence[Any], settings: Settings) -> str:
    """The same in every process for graphs that become the same kernels, as far as is known so early."""
    inputs = [
        f"{x.dtype} {list(x.shape)} {x.device}" if isinstance(x, torch.Tensor) else type(x).__name__
        for x in example_inputs
    ]
    grad = torch.is_grad_enabled()
    return graph_key(f"{grad} {getattr(gm, 'code', '')}", inputs, settings.fingerprint())
