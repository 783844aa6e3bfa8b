"""What a generated kernel says about itself: all that compiling and launching need besides its text."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from polyfuse.base.digest import stable_json

Extent = int | str
"""An integer, or a Python expression over names of size arguments: integers with + - * // % ( ), and
calls of `min` and `max`."""


PRODUCT = "GROUP"
"""A compile-time argument that kernels of matmuls have."""

WORKSPACE = "workspace"
"""The parameter, behind those of `KernelMeta.args`, of a kernel that wants memory of its own."""


@dataclass(frozen=True)
class MetaArg:
    """One argument of the kernel's function, in calling order.

    Attributes:
        name: the parameter's name in the function.
        kind: `"ptr"` or `"size"`.
        type: in Triton's spelling: `"*fp32"`, `"*bf16"`, `"*i1"`, `"i32"`, `"i64"`.
        divisible16: whether the address (in bytes) or the size is known to be a multiple of 16.
    """

    name: str
    kind: str
    type: str
    divisible16: bool = False


@dataclass(frozen=True)
class KernelMeta:
    """The launch side of one generated kernel. `Source.meta` is its text.

    Attributes:
        args: run-time arguments in calling order, equal to the IR kernel's.
        constexprs: compile-time arguments, in any order, by parameter name.
        num_warps, num_stages, num_ctas: as Triton's compiler takes them.
        grid: programs along x, y and z; where they start in clusters, clusters along x.
        cluster: programs, each compiled by itself, that start together and run side by side.
        fp_fusion: whether multiplications and additions may be contracted.
        cooperative: whether all programs must be resident at once.
        guard: an expression over size arguments; where it is 0 or False the launch is refused with an error.
            Empty: none. For example that 32-bit indices reach every element.
        zeroed: words of 64 bits, all zero, that each launch gets as the parameter `WORKSPACE`; 0: there is no
            such parameter.
        asserts: whether it stops the device where an index from data is out of range.
    """

    args: tuple[MetaArg, ...]
    constexprs: tuple[tuple[str, int | bool | str], ...]
    num_warps: int
    num_stages: int
    grid: tuple[Extent, Extent, Extent]
    num_ctas: int = 1
    fp_fusion: bool = True
    cooperative: bool = False
    guard: str = ""
    zeroed: Extent = 0
    cluster: int = 1
    asserts: bool = False

    @property
    def blocks(self) -> int:
        """Thread blocks of a cluster, as the driver counts them."""
        return self.num_ctas * self.cluster

    def text(self) -> str:
        """The canonical text, from which `parse` makes an equal value."""
        return stable_json(self)

    @staticmethod
    def parse(text: str) -> KernelMeta:
        """Read what `text` wrote."""
        values = json.loads(text)
        known = {field.name for field in dataclasses.fields(KernelMeta)}
        values = {name: value for name, value in values.items() if name in known}
        x, y, z = values.pop("grid")
        return KernelMeta(
            args=tuple(MetaArg(**arg) for arg in values.pop("args")),
            constexprs=tuple((name, value) for name, value in values.pop("constexprs")),
            grid=(x, y, z),
            **values,
        )


def is_matmul(meta: KernelMeta) -> bool:
    """Whether a kernel is a matmul."""
    return any(name == PRODUCT for name, _ in meta.constexprs)
