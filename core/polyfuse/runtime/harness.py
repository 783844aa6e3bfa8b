"""Times a host program on random inputs, as a program printed with its harness does when run as a script."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def random_inputs(specs: Sequence[Sequence[Any]]) -> list[Any]:
    """Inputs like those in a program's ``INPUTS`` table, of the example sizes and with random contents."""
    return [_random_input(*spec) for spec in specs]


def time_call(function: Callable[[list[Any]], Any], inputs: Sequence[Any]) -> float:
    """Median seconds of one call, of those in a second, and of three at least."""
    samples: list[float] = []
    function(list(inputs))
    end = time.perf_counter() + 1.0
    while len(samples) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        function(list(inputs))
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def main(namespace: dict[str, Any]) -> None:
    """Time the program whose module namespace this is, and print the result.

    Kernels that are not in the namespace are left out, and the line says so: what remains is the cost of the
    host program and of the operators that it calls.
    """
    absent = [name for name in namespace["KERNELS"] if namespace[name] is None]
    for name in absent:
        namespace[name] = _nothing
    if namespace["OBJECTS"]:
        print(
            "the program needs constants that are not in its text; time it from the process that compiled it"
        )
        return
    inputs = random_inputs(namespace["INPUTS"])
    for position, size, stride, _ in namespace["CHECKS"]:
        inputs[position] = inputs[position].as_strided(size, stride)
    seconds = time_call(namespace["call"], inputs)
    left_out = f" without its {len(absent)} kernels" if absent else ""
    print(f"{namespace['NAME']}{left_out}: {seconds * 1e6:.1f} us a call")


def _nothing(*operands: Any) -> None:
    """Stands for a kernel that is not there."""


def _random_input(
    _name: str, kind: str, dtype: str, device: str, size: Sequence[int], stride: Sequence[int]
) -> Any:
    if kind == "symint":
        return size[0]
    if kind != "tensor":
        return None
    torch_dtype: torch.dtype = getattr(torch, dtype)
    device = device or "cpu"
    storage = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if 0 not in size else 0
    makers: Mapping[bool, Callable[[], torch.Tensor]] = {
        True: lambda: torch.randn(storage, device=device).to(torch_dtype),
        # small values, so that they serve as indices too
        False: lambda: torch.randint(0, 2, (storage,), device=device).to(torch_dtype),
    }
    made = makers[torch_dtype.is_floating_point or torch_dtype.is_complex]()
    return made.as_strided(tuple(size), tuple(stride))
