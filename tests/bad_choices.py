"""A backend whose configurations misbehave, each in its own way. Children import it by name."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from polyfuse.base.errors import KernelBuildError, UnsupportedError
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Config, Launchable, Source
from polyfuse.reference.backend import InterpreterBackend

WAYS = ("fine", "segfault", "hang", "wrong", "raise", "memory", "build", "emit", "exit")


class BadChoices(InterpreterBackend):
    """The interpreter, in configurations named after what they do. The bad ones would be the fastest."""

    autotunes_gemm = True

    def configs(self, kernel: Kernel) -> Sequence[Config]:
        return [Config.of(way=i) for i in range(len(WAYS))]

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        way = WAYS[config.get("way") if config is not None else 0]
        if way == "emit":
            raise UnsupportedError("this cannot be said in my language")
        plain = super().emit(kernel)
        return Source(plain.name, plain.text, plain.language, meta=way)

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        if any(source.meta == "build" for source in sources):
            raise KernelBuildError("line 1: syntax error", "write it otherwise", name=sources[0].name)
        super().build(sources, folder)
        for source in sources:
            (folder / f"{source.key}.way").write_text(source.meta)

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        found = super().load(folder)
        return {key: _kernel((folder / f"{key}.way").read_text(), kernel) for key, kernel in found.items()}


def _kernel(way: str, right: Callable[..., None]) -> Callable[..., None]:
    def run(*operands: object) -> None:
        if way == "segfault":
            ctypes.string_at(0)
        if way == "hang":
            while True:
                time.sleep(0.1)
        if way == "raise":
            raise RuntimeError("invalid argument")
        if way == "memory":
            torch.empty(1 << 55, dtype=torch.uint8)
        if way == "exit":
            import os

            os._exit(3)
        if way == "wrong":
            return
        right(*operands)

    return run
