"""`polyfuse.aot.eager_operators`: operators of eager mode that Polyfuse computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from polyfuse.aot.operators import Call, EagerOperators
from polyfuse.base.code import code_stamp, version
from polyfuse.base.digest import digest
from polyfuse.base.folders import process_folder, writable_root
from polyfuse.base.settings import Settings
from polyfuse.plugin import PluginManager
from polyfuse.plugin.session.inventory import installed


def eager_operators(
    names: Iterable[str],
    *,
    device: str = "cpu",
    dynamic: bool = False,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> EagerOperators:
    """Compute chosen operators of eager mode by compiled kernels, until what this returns is closed.

    A kind of call, by types, layouts and values that are no tensors, is compiled when it is first met, and
    stored on disk: a later process compiles nothing. Where an operator cannot be compiled, torch's own kernel
    computes it. Each call goes through Python, which costs some microseconds: choose operators on large
    tensors.

    Args:
        names: operators such as `aten._softmax` or `aten::gelu`.
        device: type of the device whose kernels are replaced.
        dynamic: whether one compiled form serves all sizes of contiguous tensors.
        options: as `torch.compile` takes them.
        mode: likewise.

    Raises:
        UnsupportedError: an operator cannot be replaced; the message says why.
    """
    settings = Settings.resolve(mode, options)
    plugins, stamp = installed(PluginManager(settings)), code_stamp("polyfuse")
    about = digest(
        *(version(), str(torch.__version__), settings.fingerprint(), stamp, f"dynamic {dynamic}"),
        *(plugins or ()),
    )
    # where nobody can say which code compiled it, nothing is stored
    root = writable_root(settings) if plugins is not None and stamp else process_folder()

    def make(op: Any, call: Call, path: Path) -> str:
        # a process that finds all on disk compiles nothing, and needs no compiler
        from polyfuse.compiler.packages.operator import package_operator

        return package_operator(op, call, path, options, mode)

    timeout = float(settings.build_timeout)
    return EagerOperators(names, device, root, about, dynamic, make, timeout)
