"""Tiles of kernels that reduce nothing.

A tile runs along the axis along which most memory is contiguous. Where other accesses are contiguous along
another axis, as in a transposition, the tile covers both, so that each access has whole lines of memory to
itself. Axes outside the tile are fixed in a program: their share of an address is a scalar, found with few
divisions and no vector arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from polyfuse.kit import Access
from polyfuse.symbolic import product
from polyfuse_triton.reductions.row_groups import Groups
from polyfuse_triton.target import Target
from polyfuse_triton.tiling.bands import bands_plan
from polyfuse_triton.tiling.picked import picked_plan
from polyfuse_triton.tiling.plan import Dim, Plan, power_of_two
from polyfuse_triton.tiling.register_pressure import Facts

_NAMES = "xyz"
_WARP = 32
_ENOUGH = 512
"""Points along one axis that make a tile of their own worth having."""
_WASTE = 1.125
"""How much larger than the data tiles may be."""
_MIN_TRANSPOSED = 8
"""The least extent along which a second contiguous axis counts."""
REGISTERS = 96
"""Registers of a thread that the values of its points may take."""
_WINDOW, _OF_WINDOWS = 4, 4
"""Coordinates of a buffer that make a window, and points for each thread where windows are read."""
_BUSY = 4
"""Programs for each multiprocessor, below which smaller tiles are better."""


def pointwise_plan(facts: Facts, target: Target, groups: Groups | None = None, split: bool = False) -> Plan:
    """The plan of a kernel without loops; of one whose rows add to one row for each of some groups. `split`
    asks for rows and columns apart where that saves arithmetic.
    """
    if groups is not None:
        return _columns_of_groups(facts, groups)
    leads = _leads(facts)
    if not leads:
        return Plan((), None, (), (), True, 1, 1)
    bands = bands_plan(facts, leads[0], per_thread(facts.accesses, facts), target)
    special = bands or picked_plan(facts, leads[0], target)
    if special is not None:
        return special
    if len(leads) > 1:
        return _square(facts, leads, target)
    group, beside = grown(facts, facts.axes, leads[0], _ENOUGH)
    if split and can_split(facts, group):
        # what is computed of one axis alone is then computed once for a row or a column of the tile
        group, beside = group[-1:], group[-2]
    count = per_thread(facts.accesses, facts)
    if _reads_windows(facts, leads[0]):
        count = min(count, _OF_WINDOWS)
    points = facts.points(facts.axes)
    warps, block = 4, 4 * _WARP * count
    while block > 4 * _WARP and points < _BUSY * target.multiprocessors * block:
        block //= 2
    extent = facts.points(group)
    tiles: list[Dim] = []
    lead_block = min(block, power_of_two(max(1, extent)))
    while beside and lead_block > 4 * _WARP and -(-extent // lead_block) * lead_block > extent * _WASTE:
        lead_block //= 2
    if beside and lead_block < block:
        rows = min(block // lead_block, power_of_two(max(1, facts.hints[beside])))
        tiles.append(Dim("y", (beside,), facts.sizes[beside], rows))
    tiles.append(Dim("x", group, product(facts.sizes[a] for a in group), lead_block))
    elements = 1
    for dim in tiles:
        elements *= dim.block
    warps = max(1, min(warps, elements // _WARP))
    inside = {a for dim in tiles for a in dim.axes}
    return Plan(tuple(tiles), None, _rest(facts.axes, inside), (), True, warps, 1)


def _reads_windows(facts: Facts, lead: str) -> bool:
    """Whether points read several elements of one buffer, in steps, as pooling does; or of two buffers each,
    at indices that were divided, as the gradient of a maximum does.
    """
    read = [a for a in facts.accesses if not a.is_store and lead in a.strides]
    stepped = Counter(a.buffer for a in read if abs(a.strides[lead] or 0) > 1)
    divided = Counter(a.buffer for a in read if a.strides[lead] is None)
    return any(n >= _WINDOW for n in stepped.values()) or sum(n >= _WINDOW for n in divided.values()) > 1


def _columns_of_groups(facts: Facts, groups: Groups) -> Plan:
    """A chunk of a group's rows for each program."""
    columns = tuple(a for a in facts.axes if a != groups.axis)
    block = min(4 * _WARP * per_thread(facts.accesses, facts), power_of_two(max(1, facts.points(columns))))
    tile = Dim("x", columns, product(facts.sizes[a] for a in columns), block)
    return Plan((tile,), None, (groups.axis,), (), True, max(1, min(4, block // _WARP)), 1, groups)


def can_split(facts: Facts, group: Sequence[str]) -> bool:
    """Whether axes that run through one dimension may take two, so that what is computed of one axis alone is
    computed less often. That wastes the end of each row and writes memory in shorter chunks, and has lost
    wherever it was measured; tuning may try it.
    """
    return len(group) > 1 and not facts.nonlinear_axes.isdisjoint(group)


def contiguous_weights(accesses: Iterable[Access], facts: Facts) -> dict[str, float]:
    """Bytes that are contiguous along each axis, for one point."""
    found: dict[str, float] = dict.fromkeys(facts.axes + facts.raxes, 0.0)
    for access in accesses:
        for axis in access.strides:
            if access.is_contiguous(axis) and not access.indirect:
                found[axis] += facts.share(access) * access.itemsize
    return found


def per_thread(accesses: Sequence[Access], facts: Facts) -> int:
    """Points for each thread: two loads of 16 bytes of the narrowest data, fewer that need many registers."""
    full = [a for a in accesses if facts.share(a) > 0.5]
    narrow = min((a.itemsize for a in full), default=4)
    count = max(4, min(16, 32 // narrow))
    while count > 1 and count * facts.registers > REGISTERS:
        count //= 2
    return count


def grown(
    facts: Facts, axes: Sequence[str], lead: str, enough: int, waste: float = _WASTE
) -> tuple[tuple[str, ...], str]:
    """The axes that a tile dimension runs through as one, from `lead` outwards until that is long enough; and
    an axis to take as a dimension of its own, where joining it would need a division by an unknown size.
    """
    group = [lead]
    outward = [a for a in reversed(axes) if a != lead and facts.hints[a] > 1]
    while outward and not _is_long(facts, group, enough, waste):
        if any(not isinstance(facts.sizes[a], int) for a in group):
            return tuple(group), outward[0]
        group.insert(0, outward.pop(0))
    return tuple(group), ""


def _is_long(facts: Facts, group: Sequence[str], enough: int, waste: float) -> bool:
    extent = facts.points(tuple(group))
    if extent < enough:
        return False
    if all(isinstance(facts.sizes[a], int) for a in group) and extent % 16:
        # each row would begin at another distance from an aligned address
        return False
    block = min(1024, power_of_two(extent))
    return -(-extent // block) * block <= extent * waste


def _leads(facts: Facts) -> tuple[str, ...]:
    """Axes along which memory is contiguous: the best one, then those that serve accesses it does not."""
    weights = contiguous_weights(facts.accesses, facts)
    axes = [a for a in facts.axes if facts.hints[a] > 1 or not isinstance(facts.sizes[a], int)]
    if not axes:
        return facts.axes[-1:]
    best = _heaviest(axes, weights) or axes[-1]
    chosen = [best]
    while len(chosen) < len(_NAMES) and facts.hints[best] >= _MIN_TRANSPOSED:
        across = [a for a in facts.accesses if not a.indirect and _jumps(a, chosen)]
        others = [a for a in axes if a not in chosen and facts.hints[a] >= _MIN_TRANSPOSED]
        found = _heaviest(others, contiguous_weights(across, facts))
        if not found:
            break
        chosen.append(found)
    return tuple(chosen)


def _jumps(access: Access, chosen: Sequence[str]) -> bool:
    """Whether an access is contiguous along none of some axes, and does jump along the first."""
    return chosen[0] in access.strides and not any(access.is_contiguous(a) for a in chosen)


def _heaviest(axes: Sequence[str], weights: Mapping[str, float]) -> str:
    """The axis of the largest weight, the innermost of equals; empty where none has any."""
    found, most = "", 0.0
    for axis in axes:
        if weights[axis] > 0 and weights[axis] >= most:
            found, most = axis, weights[axis]
    return found


def _square(facts: Facts, leads: tuple[str, ...], target: Target) -> Plan:
    """A tile of two or three dimensions, about as long along each."""
    widest = max(a.itemsize for a in facts.accesses)
    side = 16 if len(leads) > 2 else 64 if widest <= 4 else 32
    points = facts.points(facts.axes)
    if len(leads) == 2 and side == 64 and points < _BUSY * target.multiprocessors * side * side:
        side = 32
    blocks = [min(side, power_of_two(facts.hints[a])) for a in leads]
    # where one axis is short, the others make up for it
    for position, axis in enumerate(leads):
        while blocks[position] < power_of_two(facts.hints[axis]) and _product(blocks) < side ** len(leads):
            blocks[position] *= 2
    names = _NAMES[: len(leads)]
    tiles = [Dim(n, (a,), facts.sizes[a], b) for n, a, b in zip(names, leads, blocks, strict=True)]
    elements = _product(blocks)
    warps = max(1, min(8, elements // (_WARP * 8)))
    while warps < 16 and elements * facts.registers > warps * _WARP * REGISTERS:
        warps *= 2
    return Plan(tuple(reversed(tiles)), None, _rest(facts.axes, set(leads)), (), True, warps, 1)


def _rest(axes: Sequence[str], inside: set[str]) -> tuple[str, ...]:
    return tuple(a for a in axes if a not in inside)


def _product(values: Iterable[int]) -> int:
    total = 1
    for value in values:
        total *= value
    return total
