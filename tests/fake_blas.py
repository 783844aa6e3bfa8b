"""A cuBLASLt for tests (`fake_blas.c`), whose matrices are the host's."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")


class FakeBlas:
    """The library, built once in a folder; `path` is what a launcher is given."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "libcublasLt.so.99"
        command = ["gcc", "-shared", "-fPIC", "-w", "-O1", str(_SOURCE), "-o", str(self.path), "-lm"]
        subprocess.run(command, check=True)
        self.library = ctypes.CDLL(str(self.path))

    def behave(self, *, refuse: bool = False, fail: int = 0, workspace: int = 0) -> None:
        """Offer no algorithm; end every call with a status; want so many bytes."""
        self.library.fake_set(int(refuse), fail, workspace)

    @property
    def living(self) -> int:
        """Descriptors that nobody destroyed."""
        return int(self.library.fake_living())

    @property
    def asked(self) -> int:
        """How often an algorithm was asked for."""
        return int(self.library.fake_asked())

    @property
    def calls(self) -> int:
        """Matmuls that were computed."""
        return int(self.library.fake_calls())
