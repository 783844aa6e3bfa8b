"""How much scratch CUTLASS's stream-K needs: blocks that share a tile's depth pass their sums on through it.

The built kernel is asked when it is launched, and then a program's memory has been planned. So this counts as
CUTLASS does; should a version of it count otherwise, a launch takes from torch what is missing.
"""

from __future__ import annotations

from polyfuse.symbolic import product
from polyfuse_cutlass.problem import Problem, extent

_LEAST_STAGES = 8
"""Stages of a depth that are not worth sharing."""
_MOST_SWIZZLE = 8
_GROUP = 18
"""Multiprocessors among which the blocks of a cluster lie."""
_LINE = 128
_SUM_BYTES = 4
_BARRIER_BYTES = 2 * 4
"""For each tile, of two groups of warps."""


def scratch_bytes(
    problem: Problem, tile: tuple[int, int, int], cluster: tuple[int, int], multiprocessors: int
) -> int:
    """Bytes for a launch with any of the sizes that `problem` allows.

    Args:
        problem: with the rows and columns of the tiles.
        tile: rows, columns and depth.
        cluster: blocks along the rows and along the columns.
        multiprocessors: multiprocessors of the GPU.
    """
    wave = _at_once(cluster[0] * cluster[1], multiprocessors)
    batch = product(extent(axis) for axis in problem.batch)
    rows, columns, depth = extent(problem.rows), extent(problem.columns), extent(problem.depth)
    if isinstance(depth, int) and -(-depth // tile[2]) <= _LEAST_STAGES:
        return 0
    shared = wave * 3 // 2
    if isinstance(rows, int) and isinstance(columns, int) and isinstance(batch, int):
        shared = _shared(_tiles(rows, columns, tile, cluster) * batch, wave)
    sums, barriers = shared * tile[0] * tile[1] * _SUM_BYTES, shared * _BARRIER_BYTES
    return _whole_lines(sums) + _whole_lines(barriers)


def _at_once(cluster: int, multiprocessors: int) -> int:
    """Blocks that CUTLASS takes to run at once in clusters of so many."""
    if cluster == 1:
        return multiprocessors
    groups, rest = (
        max(1, multiprocessors // _GROUP),
        multiprocessors % _GROUP if multiprocessors >= _GROUP else 0,
    )
    return min(multiprocessors, groups * (_GROUP - _GROUP % cluster) + rest - rest % cluster)


def _tiles(rows: int, columns: int, tile: tuple[int, int, int], cluster: tuple[int, int]) -> int:
    """Tiles of a matrix, with those that only fill up clusters and blocks of tiles that share the cache."""
    across, down = _in_clusters(rows, tile[0], cluster[0]), _in_clusters(columns, tile[1], cluster[1])
    fewest = min(across, down)
    swizzle = next((n for n, least in ((_MOST_SWIZZLE, 6), (4, 3), (2, 2)) if fewest >= least), 1)
    return _in_clusters(across, 1, swizzle * cluster[0]) * _in_clusters(down, 1, swizzle * cluster[1])


def _shared(tiles: int, wave: int) -> int:
    """Tiles whose depth is shared: all beside whole waves, and one of these; none where the rest fills half a
    wave.
    """
    rest = tiles % wave
    return tiles - max(0, tiles // wave - 1) * wave if rest and 2 * rest < wave else 0


def _in_clusters(size: int, tile: int, cluster: int) -> int:
    return -(-size // (tile * cluster)) * cluster


def _whole_lines(size: int) -> int:
    return -(-size // _LINE) * _LINE
