"""What the C++ functions of all kernels have in common: their frame, their parameters, their threads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass

from polyfuse.ir.kernel import Alias, Kernel
from polyfuse.kit import Writer, with_safe_names
from polyfuse.plugin import Source

_PLAIN_NAMES = {
    "arg": re.compile("(in|out|inout|io|s|(?!u(8|16|32|64)$)u)[0-9]{1,9}"),
    "row": re.compile("row[0-9]{1,9}"),
    "axis": re.compile("[pirb][0-9]{1,9}"),
    "val": re.compile("[vt][0-9]{1,9}"),
}
"""What things are usually called. No two kinds have a name in common; generated names have other forms."""


@dataclass(frozen=True)
class KernelText:
    """The text of one kernel, and the headers of the vector layer that it needs."""

    text: str
    features: tuple[str, ...]
    signature: str
    refused_aliases: tuple[Alias, ...] = ()


def plainly_named(kernel: Kernel) -> Kernel:
    """The same kernel, where everything has a name that means nothing else in C++."""
    return with_safe_names(kernel, _PLAIN_NAMES)


def kernel_unit(
    kernel: Kernel, out: Writer, features: Set[str], refused: tuple[Alias, ...] = ()
) -> KernelText:
    """What was written to `out`, as the text of a kernel."""
    text = f"namespace pf {{\n{out.text()}}}  // namespace pf\nusing pf::{Source.SYMBOL};\n"
    if "floor_div(" in text or "remainder(" in text:
        features = features | {"divide"}  # addresses divide too, not only values
    signature = "".join("i" if a.kind == "size" else "p" for a in kernel.args)
    return KernelText(text, tuple(sorted(features)), signature, refused)


def arguments(kernel: Kernel) -> str:
    """The arguments as one function passes them on to another, in front of its own."""
    return "".join(f"{a.name}, " for a in kernel.args)


def _parameters(kernel: Kernel) -> str:
    constant = {"in": "const "}
    return ", ".join(
        f"i64 {a.name}" if a.kind == "size" else f"{constant.get(a.kind, '')}{a.dtype}* {a.name}"
        for a in kernel.args
    )


@contextmanager
def entry(kernel: Kernel, out: Writer) -> Iterator[None]:
    """The function that callers see."""
    with out.block(
        f'extern "C" __attribute__((visibility("default"))) void {Source.SYMBOL}({_parameters(kernel)})'
    ):
        yield


@contextmanager
def function(kernel: Kernel, name: str, more: str, out: Writer) -> Iterator[None]:
    """A function that the entry calls, with parameters besides the kernel's."""
    comma = ", " if kernel.args else ""
    with out.block(f"static __attribute__((noinline)) void {name}({_parameters(kernel)}{comma}{more})"):
        yield


def in_team(out: Writer, *stages: str, indent: str = "") -> None:
    """Stages of work, each behind the one before it. The shares of each, number `at` of `of`, are done by as
    many threads as `team` says.
    """
    for number, stage in enumerate(stages):
        out.line(f"{indent}const auto stage{number} = [&](i64 at, i64 of) {{ {stage} }};")
    out.line(f"{indent}in_team(team, {', '.join(f'stage{number}' for number in range(len(stages)))});")


def in_parts(out: Writer, stage: str, items: str, work: str, indent: str = "") -> None:
    """One stage, whose shares may be done in any order. There are more of them than threads, where `work` is
    worth it, and at most as many as `items`: who is done with its own takes another's.
    """
    out.line(f"{indent}const auto stage0 = [&](i64 at, i64 of) {{ {stage} }};")
    out.line(f"{indent}in_parts(team, parts_for(team, {items}, {work}), stage0);")
