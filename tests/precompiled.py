"""Headers of the C++ standard library, parsed once for all programs that tests build alike: parsing them is
most of what building a small program costs."""

from __future__ import annotations

import atexit
import functools
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path


def standard_headers(command: Sequence[str], *names: str) -> list[str]:
    """Arguments that put these headers before a source built by `command`, a compiler with its flags. Where
    that cannot use what was parsed, it reads the headers themselves."""
    return ["-include", str(_parsed(tuple(command), names))]


@functools.cache
def _parsed(command: tuple[str, ...], names: tuple[str, ...]) -> Path:
    folder = tempfile.TemporaryDirectory(prefix="precompiled-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    header = Path(folder.name, "standard.h")
    header.write_text("".join(f"#include <{name}>\n" for name in names))
    subprocess.run(
        [*command, "-x", "c++-header", str(header), "-o", f"{header}.gch"], check=True, timeout=600
    )
    return header
