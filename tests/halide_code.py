"""The CPU's code of kernels that Halide compiled."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from polyfuse.base.settings import Settings
from polyfuse.ir.aliasing import permitted_aliases
from polyfuse.ir.kernel import Kernel
from polyfuse_halide.backend import HalideBackend

TARGET = "x86-64-linux-avx2-fma-avx512-avx512_skylake"
"""Vectors of 16 numbers, whatever this machine has."""


def over_its_inputs(kernel: Kernel) -> Kernel:
    """The kernel with every pair of arguments declared that may be one memory."""
    return replace(kernel, aliases=permitted_aliases(kernel))


def assembly(kernel: Kernel, folder: Path) -> str:
    """The assembly of a kernel."""
    backend = HalideBackend(Settings.resolve(options={"halide.keep": "1", "halide.target": TARGET}))
    source = backend.emit(kernel)
    backend.build([source], folder)
    return (folder / f"{source.key}.s").read_text()


def loops(text: str) -> list[str]:
    """The bodies of innermost loops of an assembly: from a label to the jump back to it."""
    body = r"(\.LBB\d+_\d+):(?:(?!\.LBB\d+_\d+:).)*?\n\s+j\w+\s+\1\n"
    return [found.group(0) for found in re.finditer(body, text, re.DOTALL)]
