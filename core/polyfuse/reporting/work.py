"""What a launch or call has to do, and what a machine can do: the two axes of a roofline."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from polyfuse.ir.graph import Graph, views_in
from polyfuse.ir.nodes import ExternCall, View
from polyfuse.kit.roofline import work_of
from polyfuse.runtime.devices.registry import device_of
from polyfuse.schedule import Call, Launch
from polyfuse.symbolic import example_value

_MATMULS = ("mm", "linear", "matmul", "addmv", "mv", "dot")
_ROUNDS, _MOST_ROUNDS, _SECONDS = 5, 100, 0.5
_CACHED = 1 << 15
"""Elements of a copy that stays in a cache."""


def operations_of(step: Launch | Call, graph: Graph) -> float | None:
    """Floating-point operations of a launch or call at the example sizes; None where nobody knows."""
    if isinstance(step, Launch):
        return work_of(step.kernel).operations
    node = step.node
    shapes = [_shape(view, graph) for view in views_in((node.args, node.kwargs))]
    results = [
        _sizes(graph.buffers[name].size, graph.symbol_hints)
        for name in node.writes()
        if name in graph.buffers and graph.buffers[name].kind != "object"
    ]
    return _call_operations(node, [s for s in shapes if s], [r for r in results if r])


def _call_operations(
    node: ExternCall, shapes: list[tuple[int, ...]], results: list[tuple[int, ...]]
) -> float | None:
    name = node.op.removeprefix("once.").split(".")[1] if "." in node.op else node.op
    if not results or not shapes:
        return None
    out = math.prod(results[0])
    if "attention" in name and len(shapes) >= 2:
        often = 2.5 if "backward" in name else 1.0
        query, key = shapes[1:3] if "backward" in name and len(shapes) > 2 else shapes[:2]
        return often * 4.0 * math.prod(query) * key[-2]
    if "convolution" in name and len(shapes) >= 2:
        weight = shapes[2] if "backward" in name and len(shapes) > 2 else shapes[1]
        often = 2.0 if "backward" in name else 1.0
        first = math.prod(shapes[0]) if "backward" in name else out
        return often * 2.0 * first * math.prod(weight[1:])
    if any(word in name for word in _MATMULS):
        matrices = [s for s in shapes if len(s) >= 2]
        if name in ("addmm", "baddbmm", "_addmm_activation") and len(matrices) > 2:
            matrices = matrices[1:]
        return 2.0 * out * matrices[0][-1] if matrices else None
    return None


def _shape(view: View, graph: Graph) -> tuple[int, ...]:
    return _sizes(view.size, graph.symbol_hints)


def _sizes(size: tuple[Any, ...], hints: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(example_value(n, hints) for n in size)


def ceilings(device: str) -> dict[str, Any]:
    """What a device does at most, measured by torch's own library: bytes in a second by copying, and
    multiplications and additions of a matmul in single precision.
    """
    kind = device.partition(":")[0]
    found = device_of(kind)
    wait, host = found.synchronize, found.is_host
    size = (1 << 24) if host else (1 << 27)
    side = 1024 if host else 4096
    source = torch.ones(size, device=device)
    target = torch.empty_like(source)
    square = torch.ones(side, side, device=device)
    copying = _best(lambda: target.copy_(source), wait)
    near, other = torch.ones(_CACHED, device=device), torch.empty(_CACHED, device=device)
    cached = None if not host else 2.0 * near.nbytes / _best(lambda: other.copy_(near), wait)
    multiplying = _best(lambda: torch.mm(square, square), wait)
    return {
        "device": device,
        "name": "CPU" if host else found.properties().name,
        "bandwidth": 2.0 * source.nbytes / copying,
        "cache_bandwidth": cached,
        "operations": 2.0 * side**3 / multiplying,
        "how": f"measured: a copy of {source.nbytes >> 20} MiB, and torch.mm of {side} x {side} float32"
        f" with {torch.get_num_threads()} threads"
        if host
        else f"measured: a copy of {source.nbytes >> 20} MiB, and torch.mm of {side} x {side} float32",
    }


def _best(run: Callable[[], object], wait: Callable[[], object]) -> float:
    times: list[float] = []
    while len(times) < _ROUNDS or (sum(times) < _SECONDS and len(times) < _MOST_ROUNDS):
        wait()
        began = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - began)
    return min(times)
