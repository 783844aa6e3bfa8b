"""What a generated kernel says about itself: all that building and launching need besides its text."""

from __future__ import annotations

import json
from dataclasses import dataclass

from polyfuse.base.digest import stable_json


@dataclass(frozen=True)
class MetaArg:
    """One argument: its name, and whether it is a pointer (else a size)."""

    name: str
    pointer: bool


@dataclass(frozen=True)
class TensorMap:
    """How the copy engine sees an operand. Texts are Python expressions over size arguments.

    Attributes:
        arg: number of the argument.
        offset: bytes from its address.
        type: the driver's number of the element type.
        extents: innermost first.
        strides: in bytes, of all dimensions but the innermost.
        box: elements that one copy moves, in each dimension.
    """

    arg: int
    offset: str
    type: int
    extents: tuple[str, ...]
    strides: tuple[str, ...]
    box: tuple[int, ...]


@dataclass(frozen=True)
class KernelMeta:
    """The launch side of one kernel. `Source.meta` is its text.

    Attributes:
        args: in calling order.
        maps: the tensor maps that come before them.
        tiles: clusters that all work needs, as an expression; none: nothing is launched.
        cluster: blocks of each.
        read_only: whether blocks take one tile after another; else there is a cluster for each tile.
        resident: blocks that a multiprocessor holds at once.
        threads, shared: of a block, in threads and bytes.
        fuse: whether multiplications and additions may be contracted.
        dependent_launch: whether it may start while the kernel before it in its stream ends, and waits itself
            for what that writes.
    """

    args: tuple[MetaArg, ...]
    maps: tuple[TensorMap, ...]
    tiles: str
    cluster: int
    read_only: bool
    threads: int
    shared: int
    resident: int = 1
    fuse: bool = True
    dependent_launch: bool = False

    def text(self) -> str:
        """The canonical text, from which `parse` makes an equal value."""
        return stable_json(self)

    @staticmethod
    def parse(text: str) -> KernelMeta:
        """Read what `text` wrote."""
        values = json.loads(text)
        args = tuple(MetaArg(**arg) for arg in values.pop("args"))
        maps = tuple(
            TensorMap(
                one["arg"],
                one["offset"],
                one["type"],
                tuple(one["extents"]),
                tuple(one["strides"]),
                tuple(one["box"]),
            )
            for one in values.pop("maps")
        )
        return KernelMeta(args=args, maps=maps, **values)
