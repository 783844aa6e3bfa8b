"""What files of sources hold, for as long as that is what the process imported."""

from __future__ import annotations

import os
import sysconfig
from functools import cache
from pathlib import Path

import torch

from polyfuse.base.code import begun
from polyfuse.base.digest import digest
from polyfuse.torch_compat.captures.guards import Unstorable

_FOLDERS = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(os.__file__).parent}{os.sep}")
_INSTALLED = tuple(
    f"{sysconfig.get_paths()[name]}{os.sep}"
    for name in ("purelib", "platlib")
    if name in sysconfig.get_paths()
)


@cache
def is_versioned(file: str) -> bool:
    """Whether a file is torch's or Python's own, whose versions are part of every key."""
    torch_folder, python_folder = _FOLDERS
    return file.startswith(torch_folder) or (
        file.startswith(python_folder) and not file.startswith(_INSTALLED)
    )


@cache
def file_text(file: str) -> str:
    """A file of sources, as text that changes with its content.

    Raises:
        Unstorable: nobody knows what of it is in use.
    """
    if is_versioned(file):
        return f"{Path(file).name} as it came"
    try:
        changed, content = os.stat(file).st_mtime, Path(file).read_bytes()
    except OSError as error:
        raise Unstorable(f"its source {file} cannot be read") from error
    if changed > begun():
        raise Unstorable(f"its source {file} changed since the process began")
    return f"{file} {digest(content)}"
