"""Packaged kernels to callables, without what generates and compiles them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from polyfuse.plugin import Launchable
from polyfuse_cutlass.launch.launcher import load_unit


def load_packaged(folder: Path, facts: Mapping[str, str]) -> Mapping[str, Launchable]:
    """The kernels of a package, ready on the current device; the driver says where it is another one."""
    return load_unit(folder)
