"""Launches of a kernel on copies of inputs, where memory was planned for one that could write over them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from polyfuse.ir.kernel import Alias, Kernel
    from polyfuse.plugin import Launchable


def apart(kernel: Kernel, pairs: Iterable[Alias], launch: Launchable) -> Launchable:
    """The launches of a kernel with the two arguments of each pair apart: the input is copied where it is
    given at the address of the output.
    """
    index = {arg.name: k for k, arg in enumerate(kernel.args)}
    indices = sorted((index[pair.output], index[pair.input]) for pair in pairs)
    return partial(_apart, launch, tuple(indices))


def _apart(launch: Launchable, pairs: tuple[tuple[int, int], ...], *operands: Any) -> None:
    given = list(operands)
    for output, source in pairs:
        written, read = operands[output], operands[source]
        if isinstance(written, torch.Tensor) and isinstance(read, torch.Tensor):
            if written.data_ptr() == read.data_ptr():
                given[source] = read.clone()
    launch(*given)
