"""GEMMs of groups of rows, each with a matrix of its own (`torch._grouped_mm`), as a choice.

Where the groups end stands in memory, so the kernel finds its tiles itself: nothing waits for the host, and
launches can be recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.nodes import View
from polyfuse.ir.types import DType
from polyfuse.kit import is_multiple
from polyfuse.plugin import CallSite, Choice, Claim, Config, No, Source, TemplateSource, Yes
from polyfuse.symbolic import IndexLike
from polyfuse_cutlass.build.meta import KernelMeta, MetaArg, TensorMap
from polyfuse_cutlass.codegen.text import LANGUAGE, device_text
from polyfuse_cutlass.problem import COPY_ALIGNMENT
from polyfuse_cutlass.target import has_hopper
from polyfuse_cutlass.tiling import SHARED_LIMIT

_TYPES: Mapping[DType, tuple[str, int]] = MappingProxyType({DType.bf16: ("bf16", 9), DType.f16: ("f16", 6)})
"""What the multiplier and the driver call types."""
_ITEM, _STEP, _FRAGMENT = 2, 8, 16 * 32 * 4
_MOST_STAGES = 8


@dataclass(frozen=True)
class GroupedTile:
    """One way to cut a problem.

    Attributes:
        consumers: groups of warps that share a tile, 64 rows each.
        columns: of a tile.
    """

    consumers: int = 2
    columns: int = 192

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return 64 * self.consumers

    @property
    def stages(self) -> int:
        """Stages of the ring: as many as there is room for."""
        room = SHARED_LIMIT - 1024 - self.consumers * 4 * _FRAGMENT
        return min(_MOST_STAGES, room // ((self.rows + self.columns) * 128 + 16))

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        each = (self.rows + self.columns) * 128 + 16
        return 1024 + self.stages * each + self.consumers * 4 * _FRAGMENT


TILES = (GroupedTile(2, 192), GroupedTile(2, 128), GroupedTile(1, 192), GroupedTile(1, 128))


@dataclass(frozen=True)
class _Grouped:
    """The operands of a call: rows, their matrices, where groups end, and the result."""

    left: View
    right: View
    ends: View
    out: View
    dtype: DType

    @property
    def along(self) -> bool:
        """Whether neighbours in memory are columns of a matrix, not depths."""
        return self.right.stride[1] != 1

    @property
    def numbers(self) -> dict[str, IndexLike]:
        """Sizes, steps and offsets that the kernel is called with, in elements; its text holds none."""
        return {
            "rows": self.left.size[0],
            "columns": self.right.size[2],
            "depth": self.left.size[1],
            "groups": self.right.size[0],
            "left_step": self.left.stride[0],
            "right_step": self.right.stride[1 if self.along else 2],
            "group_step": self.right.stride[0],
            "out_step": self.out.stride[0],
            "left_at": self.left.offset,
            "right_at": self.right.offset,
            "ends_at": self.ends.offset,
        }


def grouped_choices(device_type: str) -> tuple[Choice, ...]:
    """The choice, on devices that it is for."""
    if device_type != "cuda":
        return ()
    return (Choice("grouped", ("aten._grouped_mm.default",), applies=applies, emit=grouped, configs=configs),)


def configs(site: CallSite) -> Sequence[Config]:
    """Tiles: high and wide ones first, lower and narrower ones for few rows in a group."""
    return [Config.of(consumers=tile.consumers, columns=tile.columns) for tile in TILES]


def applies(site: CallSite) -> Claim:
    """Rows in groups, of narrow floats, that lie as the copy engine wants them."""
    found = _operands(site)
    if isinstance(found, str):
        return No(found)
    if found.left.stride[1] != 1 or 1 not in found.right.stride[1:] or found.out.stride[1] != 1:
        return No("an operand or the result does not run along rows, columns or the depth")
    steps = [found.numbers[name] for name in ("left_step", "right_step", "group_step", "out_step")]
    if not all(is_multiple(step, _STEP) for step in steps):
        return No("rows may not begin at multiples of 16 bytes")
    if not all(is_multiple(found.numbers[name], _STEP) for name in ("left_at", "right_at", "columns")):
        return No("an operand may not begin, or the result's rows not end, at a multiple of 16 bytes")
    return Yes() if has_hopper() else No("no GPU here is a Hopper")


def _operands(site: CallSite) -> _Grouped | str:
    """The operands of a call, or why it is another kind."""
    given = dict(zip(("self", "mat2", "offs", "bias", "out_dtype"), site.call.args, strict=False))
    given |= dict(site.call.kwargs)
    left, right, ends = (given.get(name) for name in ("self", "mat2", "offs"))
    if not isinstance(left, View) or not isinstance(right, View) or not isinstance(ends, View):
        return "there are no groups"
    if (len(left.size), len(right.size)) != (2, 3):
        return "the groups are not groups of rows"
    if given.get("bias") is not None:
        return "something is added"
    out = site.output.view()
    dtype, *others = {view.dtype or site.buffers[view.buffer].dtype for view in (left, right, out)}
    if others or dtype is None or dtype not in _TYPES:
        return "operands and result are not of one type of 16 bits"
    if site.buffers[ends.buffer].dtype is not DType.i32 or ends.stride != (1,):
        return "the ends of groups are not 32-bit numbers side by side"
    return _Grouped(left, right, ends, out, dtype)


def grouped(site: CallSite, config: Config | None) -> TemplateSource:
    """The kernel of a call.

    Raises:
        UnsupportedError: this generator has no kernel for it.
    """
    found = _operands(site)
    if isinstance(found, str):
        raise UnsupportedError(found, "the library computes it")
    tile = TILES[0] if config is None else GroupedTile(config.get("consumers"), config.get("columns"))
    name, _ = _TYPES[found.dtype]
    constants = f"CONSUMERS = {tile.consumers}, COLUMNS = {tile.columns}, STAGES = {tile.stages}"
    text = "\n".join(
        [
            *(device_text(one) for one in ("types.cuh", "math.cuh", "hopper.cuh")),
            f"namespace in_{Source.SYMBOL} {{",
            f"constexpr int {constants};",
            f"constexpr bool ALONG = {str(found.along).lower()};",
            f"typedef {name} Result;",
            *_args(found),
            _mma(name, tile.columns, found.along),
            device_text("grouped.cuh"),
            "}",
            "",
        ]
    )
    source = Source("grouped_gemm", text, LANGUAGE, meta=_meta(found, tile).text())
    buffers = (found.left.buffer, found.right.buffer, found.ends.buffer, found.out.buffer)
    return TemplateSource(source, (*buffers, *found.numbers.values()))


def _args(found: _Grouped) -> list[str]:
    """The kernel's arguments, each of eight bytes."""
    return [
        "struct Args {",
        "  const Result* left;",
        "  const Result* right;",
        "  const i32* ends;",
        "  Result* out;",
        *(f"  i64 {name};" for name in found.numbers),
        "};",
    ]


def _mma(name: str, columns: int, along: bool) -> str:
    """The function `mma`: one instruction on a tile of 64 rows."""
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return f"""// d += a * b, or d = a * b where not `more`
PF_INLINE void mma(f32 (&d)[{count}], u64 a, u64 b, int more) {{
  asm volatile("{{\\n.reg .pred more;\\nsetp.ne.b32 more, %{count + 2}, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{name}.{name} {{{sums}}}, "
               "%{count}, %{count + 1}, more, 1, 1, 0, {int(along)};\\n}}"
               : {operands} : "l"(a), "l"(b), "r"(more));
}}"""


def _meta(found: _Grouped, tile: GroupedTile) -> KernelMeta:
    names = ("left", "right", "ends", "out")
    _, number = _TYPES[found.dtype]
    size = str(_ITEM)
    left = TensorMap(
        0,
        f"{size} * left_at",
        number,
        ("depth", "rows", "1"),
        (f"{size} * left_step", str(COPY_ALIGNMENT)),
        (64, tile.rows, 1),
    )
    right = TensorMap(
        1,
        f"{size} * right_at",
        number,
        ("columns", "depth", "groups") if found.along else ("depth", "columns", "groups"),
        (f"{size} * right_step", f"{size} * group_step"),
        (64, 64, 1) if found.along else (64, tile.columns, 1),
    )
    return KernelMeta(
        args=tuple(MetaArg(name, name in names) for name in (*names, *found.numbers)),
        maps=(left, right),
        # at most: each group may begin a tile of its own
        tiles=f"(-(-rows // {tile.rows}) + groups) * -(-columns // {tile.columns}) if rows else 0",
        cluster=1,
        read_only=True,
        threads=128 * (tile.consumers + 1),
        shared=tile.shared,
        dependent_launch=True,
    )
