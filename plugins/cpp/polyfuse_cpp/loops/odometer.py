"""Positions on several axes, found from a flat position and moved on by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyfuse.kit import Writer
from polyfuse.symbolic import IndexLike
from polyfuse_cpp.memory.address import index_text


def start_at(
    axes: Sequence[str], sizes: Mapping[str, IndexLike], position: str, out: Writer, *, fixed: bool = False
) -> None:
    """Declare the indices of `axes`, outermost first, at a flat position; `fixed` ones are constants."""
    kind = "const i64" if fixed else "i64"
    moving = [a for a in axes if sizes[a] != 1]
    for name in axes:
        if name not in moving:
            out.line(f"const i64 {name} = 0;")
    if not moving:
        return
    if len(moving) == 1:
        out.line(f"{kind} {moving[0]} = {position};")
        return
    rest = f"{moving[0]}_rest"
    out.line(f"i64 {rest} = {position};")
    for name in reversed(moving[1:]):
        size = index_text(sizes[name])
        plain = size if size.isidentifier() or size.isdigit() else f"({size})"
        out.line(f"{kind} {name} = {rest} % {plain};")
        out.line(f"{rest} /= {plain};")
    out.line(f"{kind} {moving[0]} = {rest};")


def advance(axes: Sequence[str], sizes: Mapping[str, IndexLike], out: Writer) -> None:
    """Move the positions on `axes` on by one."""
    moving = [a for a in axes if sizes[a] != 1]
    if not moving:
        return
    text = f"++{moving[0]};"
    for name in moving[1:]:
        text = f"if (++{name} == {index_text(sizes[name])}) {{ {name} = 0; {text} }}"
    out.line(text)
