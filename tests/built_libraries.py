"""What the C++ compiler made of a text is stored: many tests have a cache folder of their own and build
kernels that others built before, in this run or an earlier one. Tests of compilers that fail or lie name
others, which always run.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_MODULE = "polyfuse_cpp.toolchain"
_COMPILER = shutil.which(os.environ.get("CXX", "g++"))
_DAYS = 7.0


def keep(folder: Path) -> None:
    """Let kernels that this process builds from now on be stored in `folder` and found there."""
    if _MODULE in sys.modules:
        _wrap(sys.modules[_MODULE], folder)
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported(folder))


def forget_old(folder: Path) -> None:
    """Remove what no run has used for a week."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run removes or renames it
            if time.time() - path.stat().st_mtime > _DAYS * 86400:
                path.unlink()


class _WhenImported:
    """Finds one module as the other finders do, and has it wrapped once it is imported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != _MODULE or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run: Callable[[ModuleType], None] = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), _wrap(module, self._folder))  # type: ignore
        return spec


def _wrap(module: ModuleType, folder: Path) -> None:
    from polyfuse.base import process

    if getattr(module, "run_program", None) is process.run_program:
        module.run_program = lambda command, **options: _stored(folder, command, options)  # type: ignore[attr-defined]


def _stored(folder: Path, command: Sequence[str], options: dict[str, Any]) -> str:
    from polyfuse.base import process

    if command[0] != _COMPILER or command.count("-o") != 1:
        return process.run_program(command, **options)
    at = command.index("-o")
    source, output = map(Path, (command[at - 1], command[at + 1]))
    found = os.stat(command[0])  # an upgrade of the compiler compiles all anew
    rest = [*command[: at - 1], *command[at + 2 :], source.name, found.st_mtime_ns, found.st_size]
    made = folder / hashlib.sha256(repr(rest).encode() + source.read_bytes()).hexdigest()
    try:
        shutil.copy(made, output)
        os.utime(made)
    except OSError:  # not made yet, or the test has seen to it that nothing can be written there
        said = process.run_program(command, **options)
        if output.is_file() and folder.is_dir():
            mine = made.with_suffix(f".{os.getpid()}.{id(output)}")
            shutil.copy(output, mine)
            mine.replace(made)
        return said
    return ""
