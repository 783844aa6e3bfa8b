"""Calls of `torch.vmap` that Dynamo need not trace line by line.

Dynamo inlines the body of `vmap`, which flattens its arguments and builds them again in Python: some 5000
instructions for a function of two pairs. `associative_scan` calls it several times for each scan. Where all
arguments are tensors and tuples of tensors, it is known what it does to the graph: it opens a level, gives
each tensor a batch dimension, calls the function, takes the dimension from each result, and closes the
level. This is recorded, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

_OWN_ARGUMENTS = 5
"""Of `vmap_impl`, before the inputs: function, dimensions of inputs and outputs, randomness, chunk size."""


class _UnusualError(Exception):
    """A call that torch's own code has to look at."""


def recorded(inline: Callable[..., Any]) -> Callable[..., Any]:
    """`FunctorchHigherOrderVariable.call_function`, recording plain calls of `vmap` without inlining it.

    Args:
        inline: torch's own method of a variable, a translator, arguments and named arguments.
    """

    def called(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        import torch

        if self.fn is torch._functorch.vmap.vmap_impl:
            try:
                call = _Call(tx, [arg.realize() for arg in args])
            except _UnusualError:
                pass
            else:
                return call.record(kwargs)
        return inline(self, tx, args, kwargs)

    return called


class _Call:
    """A call of `vmap` with tuples of tensors; making one raises `_UnusualError` for any other call."""

    def __init__(self, tx: Any, args: list[Any]) -> None:
        self.tx = tx
        self.function = args[0]
        self.inputs = args[_OWN_ARGUMENTS:]
        if not all(arg.is_python_constant() for arg in args[1:_OWN_ARGUMENTS]):
            raise _UnusualError
        in_dims, out_dims, randomness, chunk = (arg.as_python_constant() for arg in args[1:_OWN_ARGUMENTS])
        in_modes = getattr(getattr(tx, "symbolic_torch_function_state", None), "mode_stack", True)
        if in_modes or type(out_dims) is not int or type(randomness) is not str or chunk is not None:
            raise _UnusualError
        self.in_dims = list(_broadcast(in_dims, self.inputs))
        sizes: set[int] = set()
        for tree, dims in zip(self.inputs, self.in_dims, strict=True):
            sizes.update(_sizes(tree, dims))
        if len(sizes) != 1:
            raise _UnusualError
        self.size = self._variable(sizes.pop())
        self.randomness = self._variable(randomness)
        self.out_dims = self._variable(out_dims)

    def record(self, kwargs: dict[str, Any]) -> Any:
        """The variable of what the function returns."""
        from torch._dynamo.exc import ObservedException
        from torch._dynamo.variables.ctx_manager import VmapIncrementNestingCtxManagerVariable

        self._call("lazy_load_decompositions")
        # it guards the depth of the stack of `torch.func`, too
        context = VmapIncrementNestingCtxManagerVariable.create(self.tx, [self.size, self.randomness])
        level = context.enter(self.tx)
        try:
            inputs = [
                self._batched(tree, dims, level) for tree, dims in zip(self.inputs, self.in_dims, strict=True)
            ]
            outputs = self.function.call_function(self.tx, inputs, kwargs).realize()
            result = self._unbatched(outputs, level)
        except ObservedException:  # the program may catch it
            context.exit(self.tx)
            raise
        context.exit(self.tx)
        return result

    def _batched(self, tree: Any, dims: Any, level: Any) -> Any:
        if _is_tuple(tree):
            pairs = zip(tree.items, dims, strict=True)
            return type(tree)([self._batched(item.realize(), each, level) for item, each in pairs])
        return self._call("_add_batch_dim", tree, self._variable(dims), level)

    def _unbatched(self, tree: Any, level: Any) -> Any:
        if not _is_tensors(tree):
            return self._call("_unwrap_batched", tree, self.out_dims, level, self.size, self.function)
        if _is_tuple(tree):
            return type(tree)([self._unbatched(item.realize(), level) for item in tree.items])
        return self._call("_remove_batch_dim", tree, level, self.size, self.out_dims)

    def _call(self, name: str, *args: Any) -> Any:
        """Trace a call of a function that `vmap` calls itself."""
        import torch

        return self._variable(getattr(torch._functorch.vmap, name)).call_function(self.tx, list(args), {})

    def _variable(self, value: Any) -> Any:
        from torch._dynamo.variables import VariableTracker

        return VariableTracker.build(self.tx, value)


def _is_tuple(tree: Any) -> bool:
    from torch._dynamo.variables import TupleVariable

    return type(tree) is TupleVariable


def _is_tensors(tree: Any) -> bool:
    """Whether a variable is a tensor or a tuple of such, and tuples are not empty."""
    from torch._dynamo.variables import TensorVariable

    if _is_tuple(tree):
        return bool(tree.items) and all(_is_tensors(item.realize()) for item in tree.items)
    return type(tree) is TensorVariable


def _broadcast(dims: Any, items: list[Any]) -> Iterator[Any]:
    """The dimensions of each item: one for all of its tensors becomes a tuple of its form."""
    if type(dims) is int:
        dims = (dims,) * len(items)
    if type(dims) is not tuple or len(dims) != len(items):
        raise _UnusualError
    for each, item in zip(dims, (item.realize() for item in items), strict=True):
        if not _is_tensors(item):
            raise _UnusualError
        yield tuple(_broadcast(each, item.items)) if _is_tuple(item) else each


def _sizes(tree: Any, dims: Any) -> Iterator[int]:
    """The sizes of the batch dimensions of all tensors of an argument."""
    if _is_tuple(tree):
        for item, each in zip(tree.items, dims, strict=True):
            yield from _sizes(item.realize(), each)
        return
    shape = tree.as_proxy().node.meta["example_value"].shape
    if type(dims) is not int or not 0 <= dims < len(shape) or type(shape[dims]) is not int:
        raise _UnusualError
    yield shape[dims]
