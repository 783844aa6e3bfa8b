"""Built folders to callables, without Halide: what packages and the backend load kernels with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from polyfuse.base.errors import KernelLoadError
from polyfuse.plugin import Launchable
from polyfuse.runtime.native import tensor_data_ptr_address
from polyfuse_halide.host import host
from polyfuse_halide.launch.launcher import make_launcher
from polyfuse_halide.launch.objects import link


def load_folder(folder: Path, checks: bool) -> Mapping[str, Launchable]:
    """Launchers of a built folder's kernels, by key; with `checks`, of kernels that were built with them.

    Raises:
        KernelLoadError: the folder is incomplete.
    """
    try:
        rows = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))
        objects = [(folder / f"{row['key']}.o").read_bytes() for row in rows]
    except (OSError, ValueError) as error:
        raise KernelLoadError(
            f"the built folder {folder} is incomplete ({error})",
            "delete it from the cache and compile again",
        ) from error
    pointer = tensor_data_ptr_address()
    if rows and '"device"' in rows[0]["meta"]:
        from polyfuse_halide.launch.device_launcher import device_launcher

        return {
            row["key"]: device_launcher(row["symbol"], data, row["meta"], pointer)
            for row, data in zip(rows, objects, strict=True)
        }
    symbols: Mapping[str, int] = {}
    if checks:
        from polyfuse_halide.codegen.index_checks import faults

        symbols = faults().symbols(b"".join(objects))
    functions = link(objects, [row["symbol"] for row in rows], symbols)
    found = {
        row["key"]: make_launcher(row["symbol"], functions[row["symbol"]], row["meta"], pointer)
        for row in rows
    }
    if not checks:
        return found
    return {row["key"]: faults().watched(found[row["key"]], row["name"]) for row in rows}


def load_packaged(folder: Path, facts: Mapping[str, str]) -> Mapping[str, Launchable]:
    """The kernels of a package, if they were compiled for this CPU, or for one that the user named.

    Raises:
        KernelLoadError: they were compiled for another CPU.
    """
    made, here = facts["target"], host().name
    if made != here and not made.startswith(("x86-64-", "arm-64-")):
        raise KernelLoadError(
            f"kernels were compiled for the CPU {made}, and this is {here}",
            "make the package on such a machine, or with the option halide.target",
        )
    return load_folder(folder, facts["checks"] == "1")
