"""Where the page draws each node of a graph: layers by dependency, wrapped into columns.

Linear in the number of nodes and edges, so that thousands of kernels cost milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 220, 44
"""Of a node, in the units of the coordinates."""
_GAP_X, _GAP_Y, COLUMN_GAP = 28, 34, 120
_SWEEPS = 4
_ASPECT = 2.0
"""Width of a drawing against its height."""
_UNWRAPPED = 24
"""Layers that stay in one column."""


def node_corners(inputs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The upper left corner of each node.

    Args:
        inputs: for each node, the nodes before it whose results it reads.
    """
    layer = _layers(inputs)
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node, at in enumerate(layer):
        rows[at].append(node)
    outputs: list[list[int]] = [[] for _ in inputs]
    for node, before in enumerate(inputs):
        for other in before:
            outputs[other].append(node)
    x = [0.0] * len(inputs)
    for sweep in range(_SWEEPS):
        near = inputs if sweep % 2 == 0 else outputs
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {n: (sum(x[o] for o in near[n]) / len(near[n]) if near[n] else x[n]) for n in row}
            row.sort(key=lambda n: (wanted[n], n))
            _spread(row, x, wanted, [n for n in row if outputs[n]])
    return _wrapped(rows, x, layer)


def _layers(inputs: Sequence[Sequence[int]]) -> list[int]:
    layer: list[int] = []
    for before in inputs:
        layer.append(1 + max((layer[o] for o in before), default=-1))
    return layer


def _spread(row: Sequence[int], x: list[float], wanted: Mapping[int, float], inner: Sequence[int]) -> None:
    """Put the nodes of a row beside each other, so that those that others read are where they would like to
    be: a result that nobody reads must not push the chain beside it away, layer by layer.
    """
    step = WIDTH + _GAP_X
    position = {node: i * step for i, node in enumerate(row)}
    fixed = inner or row
    shift = sum(wanted[n] - position[n] for n in fixed) / len(fixed)
    for node in row:
        x[node] = position[node] + shift


def _wrapped(
    rows: Sequence[Sequence[int]], x: Sequence[float], layer: Sequence[int]
) -> list[tuple[int, int]]:
    """Cut a long drawing into columns, so that it is wider than high."""
    step = HEIGHT + _GAP_Y
    width = max((len(row) for row in rows), default=1) * (WIDTH + _GAP_X) + COLUMN_GAP
    high = max(_UNWRAPPED, math.ceil(math.sqrt(len(rows) * width / step / _ASPECT)))
    found = [(0, 0)] * len(layer)
    shift = 0.0
    for start in range(0, len(rows), high):
        part = rows[start : start + high]
        nodes = [n for row in part for n in row]
        left = min((x[n] for n in nodes), default=0.0)
        for n in nodes:
            found[n] = round(x[n] - left + shift), (layer[n] - start) * step
        right = max((found[n][0] for n in nodes), default=0)
        shift = right + WIDTH + COLUMN_GAP
    return found
