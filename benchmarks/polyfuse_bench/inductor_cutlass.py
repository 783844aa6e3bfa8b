"""Inductor's CUTLASS choices, which are off unless they are asked for, and want CUTLASS's sources in a folder
laid out as their repository is.
"""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

OPTIONS = {"max_autotune_gemm_backends": "ATEN,TRITON,CPP,CUTLASS"}
"""What asks for them, beside a mode that tunes."""

FOLDER_VARIABLE = "TORCHINDUCTOR_CUTLASS_DIR"
_PACKAGES = ("cutlass_library", "cutlass_cppgen", "pycute")


def offer_sources() -> None:
    """Tell Inductor where CUTLASS is: where the environment says, or what the wheel `nvidia-cutlass` brought.

    Before Inductor is imported, which reads the variable once. Raises `SystemExit` where there is neither.
    """
    if os.environ.get(FOLDER_VARIABLE):
        return
    found = {name: find_spec(name) for name in _PACKAGES}
    packages = {name: Path(spec.origin).parent for name, spec in found.items() if spec and spec.origin}
    missing = [name for name in _PACKAGES if name not in packages]
    if missing:
        raise SystemExit(
            f"Inductor's CUTLASS choices need {', '.join(missing)}: install nvidia-cutlass, or name a folder "
            f"of CUTLASS's sources in {FOLDER_VARIABLE}"
        )
    folder = Path(tempfile.gettempdir()) / f"polyfuse-bench-cutlass-{os.getuid()}"
    sources = packages["cutlass_library"] / "source"
    _link(folder / "include", sources / "include")
    _link(folder / "tools", sources / "tools")
    for name, package in packages.items():
        _link(folder / "python" / name, package)
    os.environ[FOLDER_VARIABLE] = str(folder)


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = link.with_name(f".{link.name}-{os.getpid()}")
    made.symlink_to(target)
    made.replace(link)
