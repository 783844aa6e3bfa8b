"""The Triton backend with Triton's interpreter in place of a GPU: the same text, run on the CPU.

`TRITON_INTERPRET` must be set before Triton is imported, so what uses this runs in a process of its own:
`in_interpreter(function, ...)` calls a function of a module there.
"""

from __future__ import annotations

import atexit
import linecache
import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from polyfuse.base.errors import KernelBuildError
from polyfuse.base.settings import Settings
from polyfuse.plugin import Launchable, Source
from polyfuse_triton.backend import TritonBackend
from polyfuse_triton.header import HEADER
from polyfuse_triton.meta import KernelMeta
from polyfuse_triton.target import known_target

_LOCK = threading.Lock()
"""The interpreter replaces parts of Triton while it runs."""


class InterpretedTriton(TritonBackend):
    """Kernels for an H200, interpreted."""

    name = "triton"
    worker = ""

    def __init__(self, settings: Settings) -> None:
        super(TritonBackend, self).__init__(settings)
        self.targets = (known_target("sm_90"),)

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        for source in sources:
            text = source.rendered()
            try:
                compile(text, source.name, "exec")
            except SyntaxError as error:
                raise KernelBuildError(f"{source.name} is malformed: {error}", output=text) from error
            (folder / f"{source.key}.py").write_text(text)
            (folder / f"{source.key}.json").write_text(source.meta)

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        return {
            path.stem: _launcher(path.read_text(), KernelMeta.parse(path.with_suffix(".json").read_text()))
            for path in sorted(folder.glob("*.py"))
        }

    def synchronize(self) -> None:
        pass

    def describe(self) -> Mapping[str, str]:
        return {"interpreted": "1"}


def _launcher(text: str, meta: KernelMeta) -> Launchable:
    place = f"<interpreted {hash(text)}>"
    linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
    names: dict[str, Any] = {}
    exec(compile(HEADER, "<header>", "exec"), names)
    exec(compile(text, place, "exec"), names)
    (symbol,) = (n for n in names if n.startswith("k_"))

    def launch(*operands: object) -> None:
        sizes = {a.name: o for a, o in zip(meta.args, operands, strict=True) if a.kind == "size"}
        grid = tuple(eval(str(g), {"min": min, "max": max}, dict(sizes)) for g in meta.grid)
        with _LOCK:
            if all(grid):
                names[symbol][grid](*operands, **dict(meta.constexprs))

    return launch


@cache
def _pool() -> ProcessPoolExecutor:
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin)
    atexit.register(pool.shutdown)
    return pool


def _begin() -> None:
    import torch

    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


def in_interpreter(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in the process where Triton interprets."""
    return _pool().submit(function, *args).result()
