"""Names for kernels; launches of equal kernels share one."""

from __future__ import annotations

from polyfuse.ir.kernel import Kernel
from polyfuse.program.steps import ProgramKernel
from polyfuse.schedule.result import Launch


class KernelTable:
    """The kernels of a program that is being planned."""

    def __init__(self) -> None:
        self._names: dict[tuple[Kernel, str], str] = {}
        self._launches: dict[str, list[str]] = {}
        self._known: dict[tuple[int, str], str] = {}  # of kernels that the schedule holds

    def name_of(self, launch: Launch) -> str:
        """The name of what a launch runs."""
        # to compare kernels takes longer than all else that is done with a launch
        known = self._known.get((id(launch.kernel), launch.backend))
        if known is not None:
            self._launches[known].append(launch.name)
            return known
        key = (launch.kernel, launch.backend)
        name = self._names.get(key)
        if name is None:
            plain = "".join(c if c.isalnum() else "_" for c in launch.kernel.name) or "kernel"
            name = self._names[key] = f"{plain}_{len(self._names)}"
        self._launches.setdefault(name, []).append(launch.name)
        self._known[id(launch.kernel), launch.backend] = name
        return name

    def entries(self) -> tuple[ProgramKernel, ...]:
        """Every kernel once, in the order of first launches."""
        return tuple(
            ProgramKernel(name, kernel, backend, tuple(self._launches[name]))
            for (kernel, backend), name in self._names.items()
        )
