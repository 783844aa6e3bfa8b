"""The backend: what it can do, and how a kernel becomes something to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyfuse.plugin import (
    SCALAR_OPS,
    Backend,
    Claim,
    Config,
    Kernel,
    KernelBuildError,
    Launchable,
    LoopNode,
    No,
    Node,
    Reduction,
    Scan,
    Scatter,
    Source,
    Yes,
    walk,
)
from polyfuse_numpy.kernel import HEADER, kernel_text
from polyfuse_numpy.ops import MODES, OPS, REDUCTIONS, SCANS, TYPES


class NumpyBackend(Backend):
    """Kernels as NumPy programs."""

    spawns_compiler = False

    def claims(self, node: Node) -> Claim:
        """Loops over types that NumPy has, with operations that it can express."""
        if not isinstance(node, LoopNode):
            return No(f"{type(node).__name__} is not a loop")
        if isinstance(node, Reduction) and node.kind not in REDUCTIONS:
            return No(f"no reduction {node.kind}")
        if isinstance(node, Scan) and node.kind not in SCANS:
            return No(f"no scan {node.kind}")
        if isinstance(node, Scatter) and node.mode not in MODES:
            return No(f"no store mode {node.mode}")
        for expr in walk(*node.expressions()):
            if expr.dtype not in TYPES:
                return No(f"NumPy has no {expr.dtype}")
            if expr.op == "rand" or (expr.op in SCALAR_OPS and expr.op not in OPS):
                return No(f"no operation {expr.op}")
        return Yes()

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        """The text of the kernel's function."""
        return Source(kernel.name, kernel_text(kernel), "py")

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        """One module for all kernels. Compiling it here finds malformed text at once."""
        text = "\n\n".join([HEADER, *(source.rendered() for source in sources)])
        try:
            compile(text, "unit.py", "exec")
        except SyntaxError as error:
            raise KernelBuildError(f"{sources[0].name} is malformed: {error}", "report its text") from error
        (folder / "unit.py").write_text(text, encoding="utf-8")

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        """The functions of a module, by the key in their names."""
        path = folder / "unit.py"
        namespace: dict[str, Any] = {}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)
        return {name.removeprefix("k_"): _quiet(f) for name, f in namespace.items() if name.startswith("k_")}

    def describe(self) -> Mapping[str, str]:
        """The versions that the text is made with and runs with."""
        return {"polyfuse-numpy": "0.1.0", "numpy": np.__version__}


def _quiet(function: Callable[..., None]) -> Launchable:
    """Overflow and division by zero are no news: they give what they give."""

    def launch(*operands: object) -> None:
        with np.errstate(all="ignore"):
            function(*operands)

    return launch
