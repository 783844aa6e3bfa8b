"""Checks that host programs make on values while they run, and the statuses that kernels leave for them."""

from __future__ import annotations

import builtins
import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from polyfuse.base.errors import InputLayoutError, PolyfuseError, mark_from_model
from polyfuse.runtime.devices.addresses import AlignmentCheck, alignment_check
from polyfuse.torch_compat.bindings import alike, assert_size_stride, empty_strided_cpu
from polyfuse.torch_compat.devices.device_graphs import backward_may_repeat

Aligned = Sequence[tuple[int, int, bool, bool]]
"""Of inputs that kernels take to be aligned: position, bytes, whether the program writes to them, and whether
they are seldom at another address than in the call before."""

Parameters = Sequence[tuple[int, Sequence[int], Sequence[int], bool]]
"""Of inputs that are the same tensor in every call: position, size, stride, and whether the program writes to
them."""

Observer = Callable[[str, torch.Tensor], None]

_observer: Observer | None = None

_SAID = 1 << 62
"""Set in every number that a kernel stores: it is never zero, whatever was out of range."""


def assert_layout(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> None:
    """Raise AssertionError for a wrong size or stride; a tensor that has no strides (a sparse one) passes."""
    if tensor.layout is torch.strided:
        assert_size_stride(tensor, size, stride)


def has_layout(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether a tensor has a size and stride, as `assert_layout` has it."""
    try:
        assert_layout(tensor, size, stride)
    except AssertionError:
        return False
    return True


def assert_finite(tensor: torch.Tensor, label: str) -> None:
    """Raise `PolyfuseError` if a tensor holds NaN or infinity."""
    if tensor.is_floating_point() or tensor.is_complex():
        if not torch.isfinite(tensor).all().item():
            what = "NaN" if torch.isnan(tensor).any().item() else "infinity"
            raise PolyfuseError(
                f"{label} holds {what} (shape {tuple(tensor.shape)})",
                "the operator named below made it; without the option `nan_asserts` this is not checked",
            )


def raise_failed(status: torch.Tensor, rows: Sequence[tuple[str, str, int]]) -> None:
    """Raise what a kernel found wrong, if it did: the first element of a status that is not zero says so.

    Args:
        status: what the kernels stored.
        rows: for each element the name of a built-in exception, its text, and the size that this may tell.
    """
    values = status.tolist()
    if any(values):
        raise_for(tuple((kind, text) for kind, text, _ in rows), *values, *(size for _, _, size in rows))


def raise_for(rows: Sequence[tuple[str, str]], *numbers: int) -> None:
    """Raise for the first of some numbers that is not zero; as many sizes stand behind them.

    The exception is the one that eager mode raises, and the model's own fault: no other backend is tried.
    """
    count = len(rows)
    for (kind, text), value, size in zip(rows, numbers[:count], numbers[count:], strict=True):
        if value:
            index = value & ~_SAID if value > 0 else value
            error: Exception = getattr(builtins, kind)(text.format(index=index, size=size))
            raise mark_from_model(error)


def conform(
    tensor: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    alignment: int = 1,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The tensor itself if it has this layout and starts at a multiple of `alignment` bytes, else a copy that
    does.

    An operator may choose other strides when it runs than it announced when it was traced.

    Raises:
        PolyfuseError: it has another shape or type; kernels would read or write beyond its memory.
    """
    if dtype is not None and tensor.dtype != dtype:
        raise PolyfuseError(
            f"an operator returned elements of {tensor.dtype} where {dtype} was announced",
            "correct the operator's fake (meta) implementation",
        )
    try:
        assert_size_stride(tensor, size, stride)
    except AssertionError:
        if tuple(tensor.shape) != tuple(size):
            raise PolyfuseError(
                f"an operator returned the shape {tuple(tensor.shape)} where {tuple(size)} was announced",
                "correct the operator's fake (meta) implementation, or the program's check that announces it",
            ) from None
        return _copy(tensor, size, stride)
    if alignment > 1 and tensor.data_ptr() % alignment:
        return _copy(tensor, size, stride)
    return tensor


def _copy(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    copy = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor.detach())


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """The same layout, repeated elements and gaps included, in memory of its own."""
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.detach().as_strided((extent,), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride())


def aligning(call: Callable[[list[Any]], Any], aligned: Aligned) -> Callable[[list[Any]], Any]:
    """A program that copies parameters which are not where its kernels need them; it looks at others itself.

    It looks in every call: `parameter.data = other` moves one, and a graph may serve many modules of a kind.
    """
    rows = [(at, alignment) for at, alignment, _, static in aligned if static]
    if not rows:
        return call
    check = alignment_check([at for at, _ in rows], max(alignment for _, alignment in rows))
    return partial(_aligned, call, check, aligned)


def _aligned(
    call: Callable[[list[Any]], Any], check: AlignmentCheck, aligned: Aligned, args: list[Any]
) -> Any:
    return call(args) if check(args) else realigned(call, args, aligned)


def realigned(call: Callable[[list[Any]], Any], args: list[Any], aligned: Aligned) -> Any:
    """Run a program with copies in place of the inputs that are not at such addresses; what it writes to them
    is copied back.
    """
    written: list[tuple[torch.Tensor, torch.Tensor]] = []
    for position, alignment, mutated, _ in aligned:
        tensor = args[position]
        if tensor.data_ptr() % alignment:
            args[position] = copy = _moved(tensor)
            if mutated:
                written.append((tensor, copy))
    results = call(args)
    for tensor, copy in written:
        tensor.copy_(copy)
    return results


def watched(
    call: Callable[[list[Any]], Any], args: Sequence[Any], parameters: Parameters, names: Sequence[str]
) -> Callable[[list[Any]], Any]:
    """A program that looks in every call at the layout of its parameters, which in the first call are among
    `args`: it runs on copies of those that are laid out otherwise since. Needed where Dynamo does not guard
    parameters.

    Args:
        names: of all inputs, for messages.
    """
    dense = [row for row in parameters if args[row[0]].layout is torch.strided]
    if not dense:
        return call
    positions = [row[0] for row in dense]
    tensors = [args[position] for position in positions]
    # a program for further sizes may meet them when they have changed already
    fit = all(has_layout(args[position], size, stride) for position, size, stride, _ in dense)
    return partial(
        _with_layouts,
        call,
        # a getter of one position does not give a tuple
        get=itemgetter(*positions)
        if len(positions) > 1
        else itemgetter(slice(positions[0], positions[0] + 1)),
        like=alike(tensors) if fit else _unknown,
        rows=[(row, names[row[0]], tensor.dtype) for row, tensor in zip(dense, tensors, strict=True)],
    )


def _unknown(*_: torch.Tensor) -> bool:
    return False


def _with_layouts(
    call: Callable[[list[Any]], Any],
    args: list[Any],
    get: Callable[[list[Any]], Sequence[torch.Tensor]],
    like: Callable[..., bool],
    rows: Sequence[tuple[tuple[int, Sequence[int], Sequence[int], bool], str, torch.dtype]],
) -> Any:
    if like(*get(args)):
        return call(args)
    written: list[tuple[torch.Tensor, torch.Tensor]] = []
    for (position, size, stride, mutated), name, dtype in rows:
        tensor = args[position]
        if tensor.dtype != dtype or tuple(tensor.shape) != tuple(size):
            raise InputLayoutError(
                f"parameter {name} is {tensor.dtype} of size {tuple(tensor.shape)}, and was {dtype} of size"
                f" {tuple(size)} when the model was compiled",
                "call torch._dynamo.reset() behind such changes; this version of torch does not notice them",
            )
        if not has_layout(tensor, size, stride):
            args[position] = copy = _copy(tensor, size, stride)
            if mutated:
                written.append((tensor, copy))
    results = call(args)
    for tensor, copy in written:
        tensor.copy_(copy)
    return results


def with_memory(call: Callable[[list[Any]], Any], args: list[Any], positions: Sequence[int]) -> Any:
    """Run a program with zeros to read in place of tensors that are zero without having memory."""
    for position in positions:
        args[position] = args[position].clone()
    return call(args)


def with_views(
    call: Callable[[list[Any]], Any], args: list[Any], views: Sequence[tuple[int, int]]
) -> tuple[Any, ...]:
    """Run a forward of which some results are parts of inputs: autograd learns of it, and refuses
    what would overwrite an input behind its back.
    """
    inputs = [args[position] for _, position in views]
    results = list(call(args))
    for (position, _), tensor in zip(views, inputs, strict=True):
        part = results[position]
        # an input that lay where kernels could not read it was copied
        if part.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            results[position] = tensor.as_strided(part.size(), part.stride(), part.storage_offset())
    return tuple(results)


def spared(call: Callable[[list[Any]], Any], args: list[Any], donated: Sequence[int]) -> Any:
    """Run a backward that may overwrite the inputs at some positions; on copies of these, if what was saved
    for it is needed again.
    """
    if backward_may_repeat():
        for position in donated:
            if args[position].numel():
                args[position] = _moved(args[position])
    return call(args)


def set_observer(observer: Observer | None) -> Observer | None:
    """Register the function that programs compiled to be observed show their intermediate values to.

    It is called with the name of the graph's operator and the value. Returns the one registered before.
    """
    global _observer
    previous, _observer = _observer, observer
    return previous


def observe(label: str, tensor: torch.Tensor) -> None:
    """Show a value to the observer, if there is one."""
    if _observer is not None:
        _observer(label, tensor)


_FREE: dict[int, list[torch.Tensor]] = {}
"""Statuses that no call uses, by their number of elements: as many as calls ran at once. They are zero:
making, zeroing and reading a tensor of one number would take longer than a small kernel.
"""


def lend_status(count: int) -> torch.Tensor:
    """A tensor of so many i64 that are zero, which no other call knows. Its attribute `words` are the numbers
    themselves.
    """
    try:
        return _FREE[count].pop()
    except (KeyError, IndexError):
        return _new_status(count)


def return_status(status: torch.Tensor, rows: Sequence[tuple[str, str, int]]) -> None:
    """Raise what a kernel found wrong, as `raise_failed` does; where nothing is, the next call may have the
    status.
    """
    if any(status.words):
        raise_failed(status, rows)
    _FREE[len(rows)].append(status)


def _new_status(count: int) -> torch.Tensor:
    _FREE.setdefault(count, [])
    status = empty_strided_cpu((count,), (1,), torch.int64)
    words = (ctypes.c_int64 * count).from_address(status.data_ptr())
    words[:] = [0] * count
    status.words = memoryview(words).cast("B").cast("q")
    return status
