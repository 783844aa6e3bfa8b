"""Where CUTLASS's headers are: in a folder that the user names, in the wheel, or with the system's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from polyfuse.base.errors import BackendUnavailableError, InvalidOptionError
from polyfuse.base.settings import Settings, environment
from polyfuse_cuda.toolchain import Compiler
from polyfuse_cutlass.target import Target

_OLDEST = (3, 5)
_SYSTEM = ("/usr/local/cuda/include", "/usr/local/include", "/usr/include")
_VERSION = re.compile(r"#define CUTLASS_(MAJOR|MINOR|PATCH) (\d+)")


@dataclass(frozen=True)
class Headers:
    """A folder to include from, and what is in it, for people and keys."""

    folder: str
    version: str


def find_headers() -> Headers:
    """The first that is new enough of `CUTLASS_HOME`, the wheel nvidia-cutlass, and folders of the system.

    Raises `BackendUnavailableError` where there is none.
    """
    return _found(environment("CUTLASS_HOME"))


@lru_cache(maxsize=4)
def _found(home: str) -> Headers:
    old = ""
    folders = [Path(home) / "include", Path(home)] if home else []
    for folder in (*folders, *_of_wheel(), *map(Path, _SYSTEM)):
        version = _version(folder)
        if version >= _OLDEST:
            return Headers(str(folder), ".".join(map(str, version)))
        if version:
            old = f"; those in {folder} are older than {'.'.join(map(str, _OLDEST))}"
    raise BackendUnavailableError(
        f"no headers of CUTLASS were found{old}",
        "run `pip install --no-deps nvidia-cutlass`, or name their folder in CUTLASS_HOME",
    )


def _of_wheel() -> list[Path]:
    spec = find_spec("cutlass_library")
    folders = spec.submodule_search_locations if spec is not None else None
    return [Path(folder) / "source" / "include" for folder in folders or ()]


def _version(folder: Path) -> tuple[int, ...]:
    """Of the headers in a folder; empty where there are none."""
    try:
        text = (folder / "cutlass" / "version.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(int(number) for _, number in _VERSION.findall(text))


def collectives_of(settings: Settings) -> int:
    """How many candidates of CUTLASS's own autotuning builds for a GEMM: the option `cutlass.collectives`.

    Raises:
        InvalidOptionError: it is no number.
    """
    value = settings.plugin_option("cutlass", "collectives", 0)
    try:
        number = int(str(value or 0))
    except ValueError:
        number = -1
    if number < 0:
        raise InvalidOptionError(f"option 'cutlass.collectives' has {value!r}", "write a number, such as 4")
    return number


def headers_for(compiler: Compiler, target: Target, collectives: int) -> Headers | None:
    """The headers, if they are wanted and can be used.

    Raises `BackendUnavailableError` where a GPU has no kernels without them.
    """
    reason = ""
    if collectives:
        try:
            if compiler.kind == "nvcc":
                return find_headers()
            reason = "there is no nvcc to compile them"
        except BackendUnavailableError as error:
            reason = error.cause
    if target.ampere:
        raise BackendUnavailableError(
            "on an Ampere, matrix multiplications are made by CUTLASS's templates only, and "
            + (reason or "these are not wanted"),
            "set the option cutlass.collectives to how many are tried, such as 4",
        )
    return None
