"""The interpreter as a backend: its source language is IR text, and building is writing it down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from polyfuse.base.code import version
from polyfuse.base.errors import IRError, KernelBuildError, KernelLoadError
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import LoopNode, Node
from polyfuse.ir.text.parse import parse_kernel
from polyfuse.ir.text.print import text
from polyfuse.ir.verifier.verify import verify_kernel
from polyfuse.plugin import Backend, Claim, Config, Launchable, No, Source, Yes
from polyfuse.torch_compat.tracing.global_state import plain_operators

_SUFFIX = ".ir"


class InterpreterBackend(Backend):
    """Runs every kernel in the reference interpreter, which is slow."""

    spawns_compiler = False
    autotunes_kernels = False

    def claims(self, node: Node) -> Claim:
        """All loops."""
        return Yes() if isinstance(node, LoopNode) else No(f"{type(node).__name__} is not a loop")

    def may_group(self, kernel: Kernel) -> Claim:
        """Any."""
        return Yes()

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        """The text of the kernel."""
        nameless = replace(kernel, name=Source.SYMBOL)
        return Source(kernel.name, text(nameless, comments=False), "polyfuse ir")

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        """One file a kernel, once it is known to be well formed.

        Raises:
            KernelBuildError: a kernel is malformed.
        """
        for source in sources:
            content = source.rendered()
            try:
                verify_kernel(parse_kernel(content))
            except IRError as error:
                raise KernelBuildError(
                    f"kernel {source.name} is malformed: {error}", "report its text", name=source.name
                ) from error
            (folder / f"{source.key}{_SUFFIX}").write_text(content, encoding="utf-8")

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        """The kernels of a built folder by key, read when they are first called.

        Raises:
            KernelLoadError: a file cannot be read.
        """
        found: dict[str, Launchable] = {}
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            try:
                found[path.stem] = Interpreted(path.read_text(encoding="utf-8"))
            except OSError as error:
                raise KernelLoadError(f"{path} cannot be read ({error})", "clear the cache") from error
        return found

    def describe(self) -> Mapping[str, str]:
        """The version alone: the text of a kernel is all that it depends on."""
        return {"interpreter": version()}


@dataclass(frozen=True)
class Interpreted:
    """A kernel that is called like a built one."""

    source: str

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel that the text describes."""
        return parse_kernel(self.source)

    def __call__(self, *args: Any) -> None:
        # built kernels are no operators either: no mode and no subclass of tensors sees a chunk of one
        with plain_operators(), torch.no_grad():
            run_kernel(self.kernel, args)
