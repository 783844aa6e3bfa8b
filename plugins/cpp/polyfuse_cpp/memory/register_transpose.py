"""Tiles of accesses that run across the lanes: declared and filled before a loop over a tile, written back
after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyfuse.kit import Access
from polyfuse.symbolic import coefficient
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.ops import vector_type
from polyfuse_cpp.memory.address import index_text


@dataclass(frozen=True)
class TransposedTiles:
    """Accesses whose values are in tiles.

    Attributes:
        tiles: what element `k` of each access (by identity) is called, for every copy.
        after: lines that write what was stored back to memory.
    """

    tiles: Mapping[int, tuple[str, ...]]
    after: tuple[str, ...]


def transpose_tiles(
    accesses: Sequence[Access], frame: Frame, along: str, base: str, extent: str = "", first: str = ""
) -> TransposedTiles:
    """Declare a tile for each access and fill those that are loaded.

    Args:
        frame: the level in front of the loop over a tile, at the lanes that it is for.
        along: axis along which the accesses are contiguous.
        base: text of the tile's first position on that axis.
        extent: text of further operands, for a tile that is not whole: its rows and the elements of each.
        first: the elements of each row, where these are always fewer than the lanes and all rows are there.
    """
    part = f"_first<{first}>" if first else ""
    tiles: dict[int, tuple[str, ...]] = {}
    after: list[str] = []
    for number, access in enumerate(accesses):
        step = coefficient(access.index, frame.lane or "")
        assert step is not None
        indirect = {f"@{k}": frame.text(v, False) for k, v in enumerate(access.indirect)}
        names: list[str] = []
        for copy in range(frame.copies):
            name = f"tile{number}_{copy}" if copy else f"tile{number}"
            index = index_text(frame.at_copy(access.index, copy), {along: base, **indirect})
            position = f"{access.buffer} + {index}"
            frame.out.line(f"{vector_type(frame.facts.memory[access.buffer])} {name}[{frame.lanes}];")
            if access.is_store:
                streaming = "<true>" if id(access.stmt) in frame.streaming and not extent else part
                after.append(f"tile_store{streaming}({position}, {name}, {index_text(step)}{extent});")
            else:
                frame.out.line(f"tile_load{part}({name}, {position}, {index_text(step)}{extent});")
            names.append(f"{name}[k]")
        tiles[id(access.stmt)] = tuple(names)
    return TransposedTiles(tiles, tuple(after))
