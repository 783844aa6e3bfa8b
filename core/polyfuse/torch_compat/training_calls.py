"""Calls of compiled graphs without what AOTAutograd does around graphs that do not need it.

Most of that is Python, some 90 calls a step of training, which read their code and their data from memory
again where the matmuls of the graph have swept the caches. One thing is added: backwards for several
gradients at once (`for_batches`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

import torch

from polyfuse.torch_compat.saved_tensors import watch_hooks

Boxed = Callable[[list[Any]], Any]
"""Takes its inputs in one list."""
_Marks = Sequence[tuple[int, set[int]]]
"""Positions of tensors, each with its dimensions that vary."""

FOUND: ContextVar[list[Any] | None] = ContextVar("polyfuse_autograd_functions", default=None)
"""Where `autograd.Function`s that AOTAutograd makes are noted."""
_WANTED: ContextVar[bool] = ContextVar("polyfuse_direct_calls", default=False)
_BATCHING = torch._C._parse_dispatch_key("VmapMode")
_is_included = torch._C._dispatch_tls_is_dispatch_key_included


@contextmanager
def direct_calls() -> Iterator[None]:
    """Have AOTAutograd call directly what is compiled, or found in its cache, meanwhile, where nothing else
    is to be done. The first call of each graph is torch's, which looks at custom operators then.
    """
    watch()
    token = _WANTED.set(True)
    try:
        yield
    finally:
        _WANTED.reset(token)


@cache
def watch() -> None:
    """Have functions of AOTAutograd be found, and graphs called directly, where somebody asks for that."""
    from torch._functorch._aot_autograd import runtime_wrappers

    wrap = runtime_wrappers.RuntimeWrapper.post_compile

    def post_compile(self: Any, compiled_fn: Any, *args: Any, **kwargs: Any) -> Any:
        found, owner = FOUND.get(), getattr(compiled_fn, "__self__", None)
        if found is not None and isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            found.append(owner)
        around = wrap(self, compiled_fn, *args, **kwargs)
        return direct(self, compiled_fn, kwargs["runtime_metadata"], around)

    runtime_wrappers.RuntimeWrapper.post_compile = post_compile
    lay_out: Any = runtime_wrappers.coerce_to_expected_memory_format
    runtime_wrappers.coerce_to_expected_memory_format = _laying_out(lay_out)


def direct(wrapper: Any, compiled: Callable[..., Any], meta: Any, around: Boxed) -> Boxed:
    """A graph, called with all its inputs for all its results.

    Args:
        wrapper: how torch calls it, a `RuntimeWrapper`.
        compiled: the graph, or `apply` of the `autograd.Function` around it.
        meta: what torch knows of its inputs and results.
        around: it, with what torch does around it.
    """
    if not _WANTED.get():
        return around
    function = getattr(compiled, "__self__", None)
    if wrapper.trace_joint and function is not None:
        watch_hooks(function)
    if wrapper.disable_amp or _needs_more(meta):
        return around
    mark = _marking([(i, info.dynamic_dims) for i, info in enumerate(meta.output_info) if info.dynamic_dims])
    # inputs that the graph writes to itself
    written = tuple(meta.mutated_graph_handled_indices_seen_by_autograd)
    if not wrapper.trace_joint:
        run = _inference(compiled)
    else:
        if wrapper.indices_of_inps_to_detach or _hooked() or not _is_simple(function, meta):
            return around
        run = _training(_steps(function), around)
    called = False
    count_write = torch.autograd.graph.increment_version

    @wraps(around, assigned=())
    def call(inputs: list[Any]) -> Any:
        nonlocal called, mark, run, written
        if not called:
            if _hooks_inside(inputs):
                run, mark, written = around, None, ()
            called = True
            return around(inputs)
        if written:
            count_write([inputs[i] for i in written])
        results = run(inputs)
        if mark is not None:
            mark(results)
        return results

    return call


def _needs_more(meta: Any) -> bool:
    """Whether something is left to do around a graph: make results views, write to inputs, change a mode."""
    from torch._functorch._aot_autograd.schemas import OutputType

    return bool(
        meta.num_mutated_inp_runtime_indices
        or meta.num_intermediate_bases
        or meta.tokens
        or meta.is_rng_op_functionalized
        or meta.grad_enabled_mutation is not None
        or meta.num_forward_returns != len(meta.output_info)
        or any(
            info.output_type not in (OutputType.non_alias, OutputType.unsafe_view_alias)
            for info in meta.output_info
        )
    )


def _hooks_inside(inputs: Sequence[Any]) -> bool:
    """Whether hooks of values within a graph are an input, for compiled autograd to find them."""
    from torch.fx.experimental._backward_state import BackwardState

    return any(isinstance(value, BackwardState) for value in inputs)


def _hooked() -> bool:
    """Whether hooks of saved tensors are part of the graph, and are switched off around it."""
    from torch._functorch._aot_autograd import runtime_wrappers

    return bool(runtime_wrappers._should_disable_saved_tensors_hooks())


def _is_simple(function: Any, meta: Any) -> bool:
    """Whether a function takes and saves nothing but tensors and numbers, and the same generator of random
    numbers serves both graphs."""
    from torch._functorch._aot_autograd.schemas import PlainTensorMeta

    looks = meta.subclass_tangent_meta
    return (
        function is not None
        and function.maybe_subclass_metadata is None
        and getattr(function.compiled_fw, "_boxed_call", False)
        and not meta.num_backward_tokens
        and not meta.num_graphsafe_rng_states
        and not meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw
        and all(isinstance(look, PlainTensorMeta) and look.memory_format for look in looks)
        and len(_tangents(meta)) == len(looks)
    )


def _tangents(meta: Any) -> tuple[int, ...]:
    """Results of which the backward takes the gradients."""
    return tuple(
        position
        for position, info in enumerate(meta.output_info)
        # torch 2.11 does not tell apart views that have no edge in autograd's graph
        if issubclass(info.raw_type, torch.Tensor)
        and getattr(info, "requires_grad_for_backward", info.requires_grad)
    )


def _marking(marks: _Marks) -> Callable[[Sequence[torch.Tensor]], None] | None:
    """Says to Dynamo which sizes of tensors vary, where some do."""
    from torch._functorch._aot_autograd import runtime_wrappers

    if not marks:
        return None
    before = getattr(runtime_wrappers, "maybe_mark_dynamic_helper", None)
    mark: Any = getattr(runtime_wrappers, "mark_dynamo_propagated_dynamic_indices", before)

    def marked(tensors: Sequence[torch.Tensor]) -> None:
        for position, dims in marks:
            mark(tensors[position], dims)

    return marked


def _inference(compiled: Callable[..., Any]) -> Boxed:
    if not getattr(compiled, "_boxed_call", False):
        plain = compiled

        def compiled(inputs: list[Any]) -> Any:
            return plain(*inputs)

    enabled, switch = torch.is_grad_enabled, torch._C._set_grad_enabled

    def run(inputs: list[Any]) -> Sequence[Any]:
        if not enabled():
            return list(compiled(inputs))
        switch(False)
        try:
            return list(compiled(inputs))
        finally:
            switch(True)

    return run


def _training(function: Any, around: Boxed) -> Boxed:
    watch_hooks(function)
    enabled, transformed = torch.is_grad_enabled, torch._C._are_functorch_transforms_active
    apply = super(torch.autograd.Function, function).apply  # without the look for transforms, and at wrappers

    def run(inputs: list[Any]) -> Sequence[Any]:
        if transformed() or not enabled():
            return list(around(inputs))
        return list(apply(*inputs))

    return run


def _steps(function: Any) -> Any:
    """An `autograd.Function` like one that AOTAutograd made of a simple graph."""
    from torch._C._dynamo.eval_frame import set_eval_frame
    from torch._dynamo.eval_frame import skip_code
    from torch._functorch._aot_autograd import runtime_wrappers

    meta = function.metadata
    results = meta.num_forward_returns
    checked = meta.tensors_saved_for_backwards_with_vc_check_slice
    unchecked = meta.tensors_saved_for_backwards_no_vc_check_slice
    numbers = meta.symints_saved_for_backwards_slice
    opaque = meta.opaque_objects_saved_for_backwards_slice
    fixed = [i for i, info in enumerate(meta.output_info) if not info.requires_grad]
    mark = _marking(tuple(meta.dynamic_saved_tensors_idxs.items()))
    tangents = _tangents(meta)
    looks = [look.memory_format for look in meta.subclass_tangent_meta]
    expected = list(zip(tangents, looks, strict=True))
    lay_out: Any = runtime_wrappers.coerce_to_expected_memory_format
    lay_out = lay_out.for_one
    boxed = getattr(function, "boxed_grads_call", False)
    may_differ = meta.deterministic is False
    known: tuple[Any, Callable[..., Any]] = (None, function.backward)

    enabled, deterministic = torch.is_grad_enabled, torch._C._get_deterministic_algorithms
    used_again, transforms, batching = (
        torch._C._autograd._get_current_graph_task_keep_graph,
        torch._C._functorch.peek_interpreter_stack,
        _is_included,
    )

    def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
        values = list(function.compiled_fw(list(inputs)))
        saved = [x.detach() if x._is_view() else x for x in values[checked]]
        rest = [x.detach() if x._is_view() else x for x in values[unchecked]]
        if mark is not None:
            mark([*saved, *rest])
        ctx.save_for_backward(*saved)
        ctx._tensors_no_vc_check = rest
        ctx.symints = values[numbers]
        ctx.opaque_objects = values[opaque]
        _hide_bases(values, meta.unsafe_view_out_indices)
        if fixed:
            ctx.mark_non_differentiable(*[values[i] for i in fixed if isinstance(values[i], torch.Tensor)])
        ctx._materialize_non_diff_grads = False
        return tuple(values[:results])

    def backward(ctx: Any, *given: Any) -> Any:
        before = set_eval_frame(None)  # who asks for gradients may be traced
        try:
            return computed(ctx, given)
        finally:
            set_eval_frame(before)

    def computed(ctx: Any, given: tuple[Any, ...]) -> Any:
        nonlocal known
        compiled = function.compiled_bw
        gradients: Any = given[0] if boxed else given
        if (
            compiled is None
            or enabled()
            or used_again()
            or transforms() is not None
            or batching(_BATCHING)
            or (may_differ and deterministic())
            or not all(type(gradients[i]) is torch.Tensor for i in tangents)
        ):
            return function.backward(ctx, *given)
        if known[0] is not compiled:
            known = compiled, _in_its_context(compiled)
        inputs = [*ctx.symints, *ctx.saved_tensors, *ctx._tensors_no_vc_check, *ctx.opaque_objects]
        inputs += [lay_out(gradients[i], look) for i, look in expected]
        if boxed:
            gradients.clear()
        ctx.maybe_clear_saved_tensors()
        del gradients, given
        return known[1](inputs)

    skip_code(backward.__code__)
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(torch.autograd.Function)(function.__name__, (function,), members)


def _hide_bases(values: list[Any], views: Sequence[int]) -> None:
    """Have autograd not see what results are views of: nobody else sees it."""
    for i in views:
        values[i] = torch.ops.aten._unsafe_view.default(values[i], values[i].shape)


def _in_its_context(compiled: Any) -> Boxed:
    """A backward of one gradient, without its shield from Dynamo, run with the variables of the context that
    asked for it.
    """
    run = getattr(compiled, "_torchdynamo_orig_callable", compiled)
    run = getattr(run, "for_one", run)
    has_context, context_of = torch._C._is_key_in_tls, torch._C._get_obj_in_tls

    def call(inputs: list[Any]) -> tuple[Any, ...]:
        context = context_of("context") if has_context("context") else None
        return tuple(run(inputs) if context is None else context.run(run, inputs))

    return call


def for_batches(compiled: Boxed, donated: Collection[int]) -> Boxed:
    """A backward that may be asked for the gradients of several at once, as `torch.autograd.grad` does with
    `is_grads_batched=True` and `torch.autograd.functional` with `vectorize=True`. Kernels read memory, which
    tensors of a batch hide, so it runs for one after the other.

    Args:
        donated: positions of inputs that it may overwrite.
    """
    included = _is_included

    @wraps(compiled, assigned=())
    def call(inputs: list[Any]) -> Any:
        return _one_by_one(call, inputs, donated) if included(_BATCHING) else compiled(inputs)

    call.for_one = compiled  # type: ignore[attr-defined]
    return call


def _one_by_one(run: Boxed, inputs: list[Any], donated: Collection[int]) -> tuple[Any, ...]:
    """The results of a call for a batch; `run` is called outside of it, for each member."""
    values = list(inputs)
    inputs.clear()
    with _outside_batch() as level:
        # members of another batch alone repeat in this one
        batches = {i: torch._remove_batch_dim(x, level, 1, 0) for i, x in enumerate(values) if _is_batch(x)}
        size = max(map(len, batches.values()), default=1)
        found = []
        for member in range(size):
            own = list(values)
            for i, batch in batches.items():
                own[i] = batch[member if len(batch) > 1 else 0]
            for position in donated:
                own[position] = own[position].clone()
            found.append(run(own))
        results = [torch.stack(x) if _is_tensor(x[0]) else x[0] for x in zip(*found, strict=True)]
    return tuple(torch._add_batch_dim(x, 0, level) if _is_tensor(x) else x for x in results)


def _laying_out(lay_out: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What gives gradients the strides that a backward was traced with, also those of several at once, sparse
    ones, and those that say of themselves that they are conjugated or negated, which kernels do not see.
    """

    def for_one(x: torch.Tensor, look: Any) -> torch.Tensor:
        if x.is_neg() or x.is_conj():
            x = x.resolve_conj().resolve_neg()
        try:
            return lay_out(x, look)
        except RuntimeError:
            if x.layout is torch.strided:
                raise
            return lay_out(x.to_dense(), look)

    @wraps(lay_out)
    def laid_out(x: torch.Tensor, look: Any) -> torch.Tensor:
        # Dynamo may trace who asks for gradients
        if torch.compiler.is_dynamo_compiling():
            return lay_out(x, look)
        if not _is_batch(x):
            return for_one(x, look)
        with _outside_batch() as level:
            batch = torch._remove_batch_dim(x, level, 1, 0)
            one = for_one(batch[0], look)
            room = sum((n - 1) * step for n, step in zip(one.shape, one.stride(), strict=True)) + 1
            size, stride = (len(batch), *one.shape), (room, *one.stride())
            made = torch.empty_strided(size, stride, dtype=x.dtype, device=x.device).copy_(batch)
        return torch._add_batch_dim(made, 0, level)

    laid_out.for_one = for_one  # type: ignore[attr-defined]
    return laid_out


@contextmanager
def _outside_batch() -> Iterator[int]:
    """Outside of the innermost batch that is open, inside; its number."""
    torch._C._vmapmode_decrement_nesting()
    try:
        level = torch._C._vmapmode_increment_nesting()
        torch._C._vmapmode_decrement_nesting()
        yield level
    finally:
        torch._C._vmapmode_increment_nesting()


def _is_batch(value: Any) -> bool:
    return _is_tensor(value) and torch._C._functorch.is_legacy_batchedtensor(value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
