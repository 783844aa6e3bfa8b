"""What native host programs are given when they run inside Python: functions that answer their requests, and
messages where one fails.

A backend that prints host programs (`Backend.host_program`) returns from `load` a function that is called
with `HostTables` and returns the program: called with a list of inputs, which it empties, it returns a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from polyfuse.runtime.checks import assert_finite, assert_layout, conform, observe, raise_for
from polyfuse.runtime.explain import layout_error, not_a_tensor
from polyfuse.runtime.native import assert_size_stride, empty_strided_cpu, reinterpret_tensor, result_view
from polyfuse.runtime.workspace import empty_strided_cpu_large

if TYPE_CHECKING:
    from polyfuse.runtime.libraries import SharedLibrary


@dataclass(frozen=True)
class Plan:
    """How arguments are put together on a stack: steps of a kind and a number.

    Attributes:
        code: `4 * number + kind` of each step. Kind 0 pushes a constant, 1 an operand that is a reference, 2
            one that is an integer; 3 makes a tuple of the topmost `number` entries.
        constants: by number.
        depth: most entries that the stack holds.
    """

    code: tuple[int, ...]
    constants: tuple[Any, ...]
    depth: int


@dataclass(frozen=True)
class Answer:
    """A function that answers a request.

    Attributes:
        function: called with what `arguments` leaves on the stack.
        arguments: positional ones first.
        positional: how many these are.
        keywords: names of the others.
        results: `r`, `i` or `-` for each result, as in `Request`.
        several: whether it returns a tuple of results.
    """

    function: Callable[..., Any]
    arguments: Plan
    positional: int
    keywords: tuple[str, ...]
    results: str
    several: bool


@dataclass(frozen=True)
class HostTables:
    """All that a program is opened with.

    Attributes:
        name: of the graph.
        inputs: a letter for each, as in `HostInput`.
        results: `r` or `i` for each result.
        kernels: their addresses.
        constants: tensors that it reads.
        requests: what answers them.
        returns: leaves the tuple that the caller gets on the stack.
        tensor_type: what inputs with the letter `t` are instances of.
        realigned: called with the program and a list of inputs that are not where kernels need them.
        explain: called with an exception, the number of the request that raised it, and its arguments; or,
            where an input is no tensor, with -1 less its position and it. Returns the exception to raise.
        data_pointer: address of a function from a tensor object to the address of its data.
        libraries: where kernels are, which the program must hold as long as it lives.
    """

    name: str
    inputs: str
    results: str
    kernels: tuple[int, ...]
    constants: tuple[Any, ...]
    requests: tuple[Answer, ...]
    returns: Plan
    tensor_type: type
    realigned: Callable[..., Any]
    explain: Callable[[BaseException, int, tuple[Any, ...]], BaseException]
    data_pointer: int
    libraries: tuple[SharedLibrary, ...] = ()


NativeCall = Callable[[list[Any]], tuple[Any, ...]]
"""A program that was opened: called with a list of inputs, which it empties."""

Opener = Callable[[HostTables], NativeCall]
"""What a backend loads for a host program."""


@dataclass
class HostStatus:
    """What became of a graph's native host program.

    Attributes:
        backend: that printed it.
        refused: why the Python program runs instead; empty if it does not.
    """

    backend: str = ""
    refused: str = ""

    def text(self) -> str:
        """One line for people."""
        return f"Python: {self.refused}" if self.refused else f"native, by {self.backend}"


def _reinterpret_as(
    tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: torch.dtype
) -> torch.Tensor:
    """A view with elements of another type, which sizes and offset count."""
    return reinterpret_tensor(tensor.view(dtype), size, stride, offset)


def _zeros_cpu(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return empty_strided_cpu(size, stride, dtype).zero_()


RUNTIME: Mapping[str, Callable[..., Any]] = {
    "assert_finite": assert_finite,
    "assert_layout": assert_layout,
    "assert_size_stride": assert_size_stride,
    "conform": conform,
    "empty_strided_cpu": empty_strided_cpu_large,
    "observe": observe,
    "raise_for": raise_for,
    "reinterpret_as": _reinterpret_as,
    "reinterpret_tensor": reinterpret_tensor,
    "result_view": result_view,
    "size": torch.Tensor.size,
    "stride": torch.Tensor.stride,
    "zeros_cpu": _zeros_cpu,
}
"""Functions that requests of the kind `"runtime"` name."""


class Explainer:
    """Says of a failed request which lines of the model it comes from, in the words of Python programs."""

    def __init__(self, inputs: tuple[str, ...], origins: tuple[str, ...], subjects: tuple[str, ...]) -> None:
        self._inputs = inputs
        self._origins = origins
        self._subjects = subjects

    def __call__(self, error: BaseException, request: int, arguments: tuple[Any, ...]) -> BaseException:
        """The exception to raise. Numbers below 0 are inputs that are no tensors, the first one is -1."""
        if request < 0:
            return not_a_tensor(self._inputs[-1 - request], arguments[0])
        subject = self._subjects[request]
        if subject and isinstance(error, (AssertionError, TypeError)):
            tensor, size, stride = arguments[:3]
            if not isinstance(tensor, torch.Tensor):
                return not_a_tensor(subject, tensor)
            return layout_error(subject, tensor, size, stride)
        if self._origins[request]:
            error.add_note(f"The compiled program was running {self._origins[request]}")
        return error
