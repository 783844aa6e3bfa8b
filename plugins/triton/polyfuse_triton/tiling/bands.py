"""Bands of columns, where data decide in which row an element lies.

`x.gather(0, index)`, and additions or stores to rows that an index names for each element, go to a random row
of their own column. Taken row by row, neighbouring elements lie in rows all over the buffer, and memory moves
a whole sector for each. Taken band by band, all rows of a band stay in the last cache while it is worked on.
"""

from __future__ import annotations

from collections.abc import Iterator

from polyfuse.kit import Access
from polyfuse_triton.target import Target
from polyfuse_triton.tiling.plan import Dim, Plan, power_of_two
from polyfuse_triton.tiling.register_pressure import Facts

_WARP, _WARPS = 32, 4
_COLUMNS = (128, 64, 32)
"""Columns of a band: whole cache lines of all that is read beside."""
_STAYS = 0.25
"""The part of the last cache that a band may fill: its end and the next one's beginning are under way, too,
and so is what is read once.
"""


def bands_plan(facts: Facts, lead: str, count: int, target: Target) -> Plan | None:
    """The plan of a kernel, with so many points for each thread, whose elements along `lead` lie in rows that
    data name; None where that is not so, or rows of the narrowest band do not stay in the last cache, or
    all rows do.
    """
    for access, row in _scattered(facts, lead):
        inner = tuple(a for a in facts.axes if a not in (row, lead) and a in access.strides)
        size = _bytes(facts, access) // max(1, facts.points(inner))
        if size <= target.l2_bytes:
            continue
        extent = facts.hints[lead]
        columns = next((c for c in _COLUMNS if size * c // extent <= _STAYS * target.l2_bytes), 0)
        if not columns or extent < 2 * columns:
            continue
        rows = min(_WARPS * _WARP * count // columns, power_of_two(facts.hints[row]))
        tiles = (Dim("y", (row,), facts.sizes[row], rows), Dim("x", (lead,), facts.sizes[lead], columns))
        grid = tuple(a for a in facts.axes if a not in (row, lead))
        warps = max(1, min(_WARPS, rows * columns // _WARP))
        return Plan(tiles, None, grid, (), True, warps, 1, in_bands=True)
    return None


def _scattered(facts: Facts, lead: str) -> Iterator[tuple[Access, str]]:
    """Accesses whose neighbours along `lead` lie in other rows, and the axis along which rows are named."""
    for access in facts.accesses:
        if access.strides.get(lead) != 1:
            continue
        named = frozenset().union(*(facts.depends[name] for name in access.indirect))
        rows = [a for a in facts.axes if a in named and a != lead and a not in access.strides]
        if lead in named and rows:
            yield access, rows[-1]


def _bytes(facts: Facts, access: Access) -> int:
    """Bytes of the buffer that an access reaches."""
    numel = next((a.numel for a in facts.kernel.args if a.name == access.buffer), None)
    return 0 if numel is None else facts.example(numel) * access.itemsize
