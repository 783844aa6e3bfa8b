"""Where a program of a matmul stands: its tile, and the names of axes in each of the three tiles it
works on.

The left operand's tile has rows and depth, the right one's depth and columns, the result's rows and columns;
`a`, `b` and `c` at the end of a name say which tile it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyfuse.symbolic import IndexLike, is_less
from polyfuse_triton.loops.coordinates import host_text, needed
from polyfuse_triton.loops.indexing import Indexer, Variable
from polyfuse_triton.matmul.narrow import AHEAD, STEP
from polyfuse_triton.matmul.plan import Matmul, MatmulPlan
from polyfuse_triton.tiling.plan import Dim


class MatmulCoordinates:
    """Lines that find a program's tile, and the names that they define."""

    def __init__(self, found: Matmul, plan: MatmulPlan, arguments: Mapping[str, str]) -> None:
        self._found = found
        self._plan = plan
        self._arguments = arguments
        self.dims = {dim.name: dim for dim in plan.dims(found)}
        self.definitions: dict[str, str] = {}
        self.in_loop: dict[str, str] = {}
        self.batch: dict[str, Variable] = {}
        if found.narrow is not None:
            self.batch |= {name: Variable(name) for name in (STEP, AHEAD)}
        self._define_program()
        for name in ("m", "n"):
            dim = self.dims[name]
            wide = is_wide(dim)
            block = f"tl.cast({name}t, tl.int64)" if wide else f"{name}t"
            self.definitions[f"{name}0"] = "0" if dim.is_one else f"{block} * {dim.constant}"

    def lines(self, texts: Iterable[str]) -> list[str]:
        """Definitions before the loop that some lines need."""
        return needed(self.definitions, texts)

    def loop_lines(self, texts: Iterable[str]) -> list[str]:
        """Definitions in the loop that some lines need."""
        return needed(self.in_loop, texts)

    def extent(self, size: IndexLike) -> str:
        """A size as text."""
        if isinstance(size, int):
            return str(size)
        return Indexer(self.batch.__getitem__, self._arguments).value(size)[0]

    def grid(self) -> int | str:
        """The number of programs, as a Python expression over size arguments."""
        total: IndexLike = self._found.extent(self._found.batch)
        for name in ("m", "n"):
            total = total * self._count(self.dims[name])
        return total if isinstance(total, int) else host_text(total, self._arguments)

    @staticmethod
    def _count(dim: Dim) -> IndexLike:
        """Tiles along a dimension."""
        return (dim.extent + (dim.block - 1)) // dim.block

    def _define_program(self) -> None:
        """Tiles in bands of some rows, column by column within a band, so that what runs at the same time
        shares rows and columns.
        """
        define = self.definitions
        rows, columns = (self._named(name) for name in ("m", "n"))
        tile = self._define_batch(rows, columns)
        if rows == "1" or columns == "1":
            define["mt"] = "0" if rows == "1" else tile
            define["nt"] = "0" if columns == "1" else tile
            return
        define["band"] = f"{tile} // (GROUP * {columns})"
        define["band_rows"] = f"tl.minimum({rows} - band * GROUP, GROUP)"
        define["within"] = f"{tile} % (GROUP * {columns})"
        define["mt"] = "band * GROUP + within % band_rows"
        define["nt"] = "within // band_rows"

    def _define_batch(self, rows: str, columns: str) -> str:
        """The name of the number of a program's tile within its batch."""
        define = self.definitions
        define["program"] = "tl.program_id(0)"
        if not self._found.batch:
            return "program"
        define["tiles"] = f"{rows} * {columns}"
        define["tile"] = "program % tiles"
        rest = "program // tiles"
        for number in reversed(range(len(self._found.batch))):
            size = self._found.sizes[self._found.batch[number]]
            if number:
                text = str(size) if isinstance(size, int) else f"tl.cast({self.extent(size)}, tl.int32)"
                define[f"rest{number}"] = rest
                define[f"g{number}"] = f"rest{number} % {text}"
                rest = f"rest{number} // {text}"
            else:
                define["g0"] = rest
            self.batch[f"g{number}"] = Variable(f"g{number}")
        return "tile"

    def _named(self, name: str) -> str:
        """The number of tiles along a dimension, as text: never more than there are programs."""
        count = self._count(self.dims[name])
        if isinstance(count, int):
            return str(count)
        self.definitions[f"{name}_count"] = f"tl.cast({self.extent(count)}, tl.int32)"
        return f"{name}_count"


class TileCoordinates:
    """The names of axes in one of the tiles: what its statements ask for."""

    def __init__(self, program: MatmulCoordinates, names: str, letter: str) -> None:
        self._program = program
        self._masks: dict[str, str] = {}
        self._variables = dict(program.batch)
        for position, dim in enumerate(program.dims[name] for name in names):
            n = dim.name
            along = "[:, None]" if position == 0 else "[None, :]"
            lane, whole, mask, start = f"{n}l{letter}", f"{n}{letter}", f"{n}m{letter}", f"{n}0"
            wide = is_wide(dim)
            program.definitions[lane] = f"tl.arange(0, {dim.constant}){along}"
            into = program.in_loop if n == "k" else program.definitions
            into[whole] = f"{start} + {lane}"
            if not divides(dim):
                left = f"tl.minimum({program.extent(dim.extent)} - {start}, {dim.constant})"
                narrow = isinstance(dim.extent, int) and not wide
                into[mask] = f"{lane} < {left}" if narrow else f"{lane} < tl.cast({left}, tl.int32)"
                self._masks[n] = mask
            if dim.is_one and (n != "k" or STEP in program.batch):
                self._variables[n] = Variable(lane, frozenset((n,)), "", lane, dim.block)
            else:
                self._variables[n] = Variable(whole, frozenset((n,)), start, lane, dim.block, wide)

    def extent(self, size: IndexLike) -> str:
        """A size as text."""
        return self._program.extent(size)

    def variable(self, name: str) -> Variable:
        """What an axis is in the text."""
        return self._variables[name]

    def mask(self, dims: Iterable[str]) -> tuple[str, ...]:
        """Names of the masks that keep a tile inside some dimensions."""
        chosen = set(dims)
        return tuple(text for name, text in self._masks.items() if name in chosen)


def divides(dim: Dim) -> bool:
    """Whether every tile along a dimension is full."""
    return (not isinstance(dim.extent, int) and (dim.extent % dim.block) == 0) or dim.is_full


def is_wide(dim: Dim) -> bool:
    """Whether indices along a dimension may need 64 bits."""
    return not is_less(dim.extent, (1 << 31) - dim.block)
