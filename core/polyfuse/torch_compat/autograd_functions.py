"""The functions that AOTAutograd makes for autograd, without its wrappers around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from polyfuse.torch_compat.training_calls import FOUND, watch


@contextmanager
def found_functions() -> Iterator[list[Any]]:
    """The `autograd.Function`s that AOTAutograd makes, or finds in its cache, meanwhile."""
    watch()
    found: list[Any] = []
    token = FOUND.set(found)
    try:
        yield found
    finally:
        FOUND.reset(token)


class PlainFunction:
    """An `autograd.Function` that AOTAutograd made, of a graph that needs little of what it does around it.

    Attributes:
        fixed: of each result, whether it has no gradient.
    """

    def __init__(self, function: Any) -> None:
        from torch._functorch._aot_autograd.runtime_wrappers import AOTDispatchAutograd

        self._function = function
        self._conform = AOTDispatchAutograd.process_runtime_tangent
        self._boxed = getattr(function, "boxed_grads_call", False)
        meta = function.metadata
        self.fixed = tuple(not info.requires_grad for info in meta.output_info)
        self._results = len(self.fixed)
        self._tangents = tuple(
            position
            for position, info in enumerate(meta.output_info)
            # torch 2.11 does not tell apart views that have no edge in autograd's graph
            if getattr(info, "requires_grad_for_backward", info.requires_grad)
        )
        self._looks = meta.subclass_tangent_meta
        self._direct = (
            getattr(meta, "num_unsafe_view_outputs", 1) == 0
            and getattr(meta, "num_tensors_saved_with_no_vc_check", 1) == 0
            and not (getattr(meta, "num_opaque_objects_saved_for_bw", 0) or meta.num_backward_tokens)
            and not (getattr(meta, "num_graphsafe_rng_states", 0) or meta.dynamic_saved_tensors_idxs)
            and len(self._tangents) == len(self._looks)
        )

    def forward(self, context: Any, inputs: list[Any], direct: bool) -> Sequence[Any]:
        """The results; what the backward needs is left in `context`, as in that of autograd.

        Args:
            direct: whether nothing that is switched asks for AOTAutograd's preparations (`direct_now`).
        """
        if not (direct and self._direct):
            made: Sequence[Any] = self._function.forward(context, *inputs)
            return made
        values = self._function.compiled_fw(inputs)
        context.symints = context.opaque_objects = context._tensors_no_vc_check = ()
        context.saved_tensors = [x.detach() if x._is_view() else x for x in values[self._results :]]
        results: Sequence[Any] = values[: self._results]
        return results

    def backward(self, context: Any, gradients: list[Any], direct: bool) -> Sequence[Any]:
        """The gradients of the inputs, of those of all results."""
        compiled = self._function.compiled_bw
        if compiled is None or not (direct and self._direct):
            made: Sequence[Any] = self._function.backward(
                context, *([gradients] if self._boxed else gradients)
            )
            return made
        given = [*context.saved_tensors]
        given.extend(
            self._conform(gradients[position], look)[0]
            for position, look in zip(self._tangents, self._looks, strict=True)
        )
        gradients.clear()
        context.saved_tensors = ()
        backwards: Sequence[Any] = compiled(given)
        return backwards


def direct_forward() -> bool:
    """Whether compiled forwards may be called directly: there is nothing to be switched off for them."""
    return not torch._C._is_any_autocast_enabled()


def direct_backward() -> bool:
    """Whether compiled backwards may be called directly: no gradients of gradients are asked for, the graph
    is used once, and the same thread runs it."""
    return not (
        torch.is_grad_enabled()
        or torch._C._is_any_autocast_enabled()
        or torch._C._autograd._get_current_graph_task_keep_graph()
        or torch._C._is_key_in_tls("context")
    )


def is_plain(function: Any, inputs: int, outputs: int) -> bool:
    """Whether a function that AOTAutograd made takes and returns what the graph does that it was made of.

    Not so where the graph writes to inputs, returns views of them, takes one twice, or has subclasses of
    tensors, sizes that vary or tokens among its values.
    """
    meta = getattr(function, "metadata", None)
    if meta is None or function.maybe_subclass_metadata is not None:
        return False
    written = any(info.mutates_data or info.mutates_metadata for info in meta.input_info)
    return (
        len(meta.input_info) == inputs
        and meta.num_outputs == meta.num_forward_returns == meta.num_forward == outputs
        and not (written or meta.num_outputs_aliased or meta.tokens or meta.num_symints_saved_for_bw)
        and meta.grad_enabled_mutation is None
    )
