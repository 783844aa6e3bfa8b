"""Names of kernels for people: in profilers, reports and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyfuse.ir.kernel import Kernel
    from polyfuse.plugin import Backend, Config, Source

_MOST_WORDS = 5
_LONGEST = 80


def readable_name(kernel: Kernel, style: str = "aten") -> str:
    """The kernel's name after the operators that it comes from; the kernel's own name if it comes from none.

    Args:
        style: what names an operator, as the option `kernel_names` has it.

    Kernels of equal text may have different ones: it is for people, and no part of any key.
    """
    words: dict[str, None] = {}
    for origin in () if style == "plain" else kernel.origins:
        parts = origin.op.split(".")
        word = origin.fx if style == "graph" else parts[1] if len(parts) > 1 else parts[0]
        if word.isidentifier():
            words[word.strip("_")] = None
    if not words:
        return kernel.name
    chosen = list(words)
    if len(chosen) > _MOST_WORDS:
        chosen = [*chosen[: _MOST_WORDS - 1], "etc"]
    return f"fused_{'_'.join(chosen)}"[:_LONGEST]


def emit_named(backend: Backend, kernel: Kernel, config: Config | None = None) -> Source:
    """The kernel's source, under its readable name."""
    return backend.emit(kernel, config).renamed(readable_name(kernel, backend.settings.kernel_names))
