"""The kernels of a graph: units that compute the same, such as those of equal layers, have one, made once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Buffer
from polyfuse.schedule.fusion.units import Unit
from polyfuse.schedule.kernels.kernelize import KernelContext, Operands, build_kernel
from polyfuse.schedule.kernels.outlines import Outline, outline_of

__all__ = ["SharedKernels"]


@dataclass(frozen=True)
class SharedKernels:
    """Kernels by what they compute.

    Attributes:
        context: what they depend on besides that.
        buffers: of the graph, by name.
        removed: those that live only inside one kernel.
        aligned: those at addresses that are aligned, for backends that ask for it.
        made: the kernel of each outline, and its operands by their neutral names.
    """

    context: KernelContext
    buffers: Mapping[str, Buffer]
    removed: frozenset[str]
    aligned: frozenset[str]
    made: dict[Outline, tuple[Kernel, Operands]] = field(default_factory=dict)

    def kernel(self, unit: Unit) -> tuple[Kernel, Operands]:
        """The kernel of a unit, and its operands: buffer names and size expressions, per argument."""
        wanted = self.context.target_info(unit.backend, unit.device).alignment
        aligned = self.aligned if wanted else frozenset[str]()
        outline, names = outline_of(unit, self.buffers, self.removed, aligned)
        found = self.made.get(outline)
        if found is None:
            found = self.made[outline] = build_kernel(outline, self.context)
        kernel, operands = found
        origins = dict.fromkeys(origin for member in unit.members for origin in member.node.origins)
        named = tuple(names[item] if isinstance(item, str) else item for item in operands)
        return replace(kernel, origins=tuple(origins)), named
