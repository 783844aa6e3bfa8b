"""What texts of kernels that use CUTLASS's headers have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from polyfuse.plugin import Source
from polyfuse_cutlass.problem import Problem

LANGUAGE = "cutlass"


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


def library_text(version: str, headers: Sequence[str], body: Sequence[str]) -> str:
    """A translation unit: headers, our types and functions, the kernel's own text, and entry points.

    The version of CUTLASS is part of it, since what is built depends on it.
    """
    return "\n".join(
        [
            f"// CUTLASS {version}",
            *(f"#include <{name}>" for name in headers),
            "namespace polyfuse_device {",
            device_text("types.cuh"),
            device_text("math.cuh"),
            "}",
            f"namespace in_{Source.SYMBOL} {{",
            "using namespace polyfuse_device;",
            *body,
            "}",
            device_text("entry.cuh"),
            "",
        ]
    )
