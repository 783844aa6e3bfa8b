"""What the texts of all kernels have in common, index expressions included."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from polyfuse.kit import c_index
from polyfuse.symbolic import IndexLike
from polyfuse_cutlass.problem import Problem

LANGUAGE = "cuda"


@cache
def device_text(name: str) -> str:
    """A file of the folder `device`."""
    return (Path(__file__).parents[1] / "device" / name).read_text(encoding="utf-8").rstrip()


def constants(numbers: Mapping[str, int], truths: Mapping[str, bool], types: Mapping[str, str]) -> list[str]:
    """Definitions of numbers, truths and types."""
    return [
        *(f"constexpr int {name} = {value};" for name, value in numbers.items()),
        *(f"constexpr bool {name} = {str(value).lower()};" for name, value in truths.items()),
        *(f"typedef {value} {name};" for name, value in types.items()),
    ]


def args_text(problem: Problem) -> str:
    """The structure of a kernel's arguments, each of eight bytes."""
    lines = []
    for arg in problem.kernel.args:
        if arg.kind == "size":
            lines.append(f"  i64 {arg.name};")
        else:
            lines.append(f"  {'const ' if arg.kind == 'in' else ''}{arg.dtype.value}* {arg.name};")
    return "\n".join(["struct Args {", *lines, "};"])


def index_text(index: IndexLike, names: Mapping[str, str]) -> str:
    """`index` in 64 bits; `names` says what axes and symbols are called."""
    return c_index(index, names, "{}LL".format)
