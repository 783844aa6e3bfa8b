from __future__ import annotations

import random
from itertools import pairwise

from polyfuse.reporting.steps import HEIGHT, WIDTH, node_corners


def overlaps(corners: list[tuple[int, int]]) -> int:
    seen: dict[int, list[int]] = {}
    for x, y in corners:
        seen.setdefault(y, []).append(x)
    rows = (sorted(row) for row in seen.values())
    return sum(b - a < WIDTH for row in rows for a, b in pairwise(row))


def test_nodes_stand_below_what_they_read() -> None:
    corners = node_corners([[], [0], [0], [1, 2]])
    heights = [y for _, y in corners]
    assert heights[0] + HEIGHT < heights[1] == heights[2] < heights[3]
    assert not overlaps(corners)


def test_long_graphs_become_columns_that_do_not_overlap() -> None:
    order = random.Random(0)
    inputs = [[i - 1, order.randrange(i)] if i else [] for i in range(1000)]
    corners = node_corners(inputs)
    assert len(set(corners)) == 1000 and not overlaps(corners)
    assert max(x for x, _ in corners) < 4 * max(y for _, y in corners)


def test_nothing_to_lay_out() -> None:
    assert node_corners([]) == []
