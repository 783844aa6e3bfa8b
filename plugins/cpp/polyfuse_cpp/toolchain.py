"""The C++ compiler: finding it, its fingerprint, the command of a build and running it.

Kernels are built with OpenMP.  By g++ they carry a dependency on ``libgomp.so.1``, the soname of the runtime
that torch ships and has already loaded, so the dynamic linker binds them to torch's copy: one thread pool for
both, and ``omp_get_max_threads()`` in a kernel follows ``torch.set_num_threads`` (a test checks both).
clang++ brings libomp instead: a pool of its own, which torch's setting does not reach.
Generated code declares ``omp_get_thread_num`` and friends by hand (feature ``omp``); pragmas need no header.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from polyfuse.base.errors import BackendUnavailableError, KernelBuildError
from polyfuse.base.process import find_command, run_bounded, run_program

if TYPE_CHECKING:
    from polyfuse_cpp.isa import Isa

_BASE_FLAGS = (
    "-std=gnu++17",
    # Kernels are vectorised and unrolled as they are written: -O3 costs a third more time and gains nothing.
    "-O2",
    "-g0",
    "-shared",
    "-fPIC",
    "-fopenmp",
    # IEEE results without the costs that nobody asked for: no errno, no traps, no contraction behind our
    # back.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-semantic-interposition",
    "-fno-stack-protector",
    "-w",
)
_LINK_FLAGS = ("-Wl,--build-id=none",)
_USUAL = ("g++", "c++", "clang++")
_BUILD_SECONDS = 300.0
_ASK_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Toolchain:
    """One C++ compiler: what to run, and what tells its output from another compiler's.

    `arguments` come first in each command: of `ccache g++` the path is ccache's, and they are `g++`.
    `flags` are the user's, behind all others, so that they win.
    `linker` is a quicker one than the default, where there is one (it does not change the output's meaning).
    `vector_libm` says that the C library has vector forms of all its functions (glibc 2.35 on x86-64).
    """

    path: str
    family: str
    version: str
    target: str
    linker: str = ""
    vector_libm: bool = False
    arguments: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def other_machine(self) -> str:
        """The machine that a cross compiler builds for; nothing: this one."""
        named = self.target.partition("-")[0]
        return "" if named == platform.machine() else named

    @property
    def fingerprint(self) -> str:
        """Text for cache keys: equal for compilers that produce the same code."""
        # what runs the compiler, as ccache does, changes nothing
        flags = [word for word in self.arguments if word.startswith("-")]
        mvec = ["mvec"] if self.vector_libm else []
        return " ".join((self.family, self.version, self.target, *mvec, *flags, *self.flags))


def find_toolchain(compiler: str = "", flags: str = "") -> Toolchain:
    """The compiler named *compiler* (a path, or a command with arguments such as ``ccache g++``), else the
    one that CXX names, else the first of g++, c++ and clang++ on the path. *flags* are words as a shell has
    them, added to each command.

    Raises:
        BackendUnavailableError: there is no compiler, or the flags are no words of a shell.
    """
    path, *arguments = find_command(
        "C++ compiler", _USUAL, variable="CXX", option="cpp.compiler", named=compiler
    )
    try:
        more = tuple(shlex.split(flags))
    except ValueError as error:
        raise BackendUnavailableError(
            f"the flags {flags!r} of the C++ compiler are no words of a shell ({error})",
            "mend the option cpp.flags",
        ) from error
    return dataclasses.replace(_inspect(path, tuple(arguments), os.stat(path).st_mtime_ns), flags=more)


@lru_cache(maxsize=8)
def _inspect(path: str, arguments: tuple[str, ...], changed: int) -> Toolchain:
    """Ask the compiler at *path* who it is; one process, remembered until the file changes."""
    try:
        done = run_bounded([path, *arguments, "-v"], timeout=_ASK_SECONDS)
    except OSError as error:
        raise BackendUnavailableError(
            f"the C++ compiler {path} does not run ({error})", "name another one in CXX"
        ) from error
    if done.status is None:
        raise BackendUnavailableError(
            f"the C++ compiler {path} did not say within {_ASK_SECONDS:.0f} seconds what it is",
            "name another one in CXX",
        )
    version = target = ""
    for line in done.output.splitlines():
        if line.startswith("Target:"):
            target = line.partition(":")[2].strip()
        elif " version " in line and not version:
            version = line.strip()
    if not version:
        raise BackendUnavailableError(f"{path} is neither g++ nor clang++", "name another compiler in CXX")
    family = "clang" if "clang" in version else "gcc"
    if family == "clang" and not _prints_a_file([path, *arguments], "libomp.so"):
        raise BackendUnavailableError(
            f"{path} has no OpenMP runtime", "install libomp for it, or name g++ in CXX"
        )
    quick, vectors = _quick_linker(target), _has_vector_libm(target)
    return Toolchain(path, family, version, target, quick, vectors, arguments)


def build_command(toolchain: Toolchain, isa: Isa, source: str, output: str) -> list[str]:
    """The command that builds *source* into the shared library *output*."""
    flags = list(_BASE_FLAGS)
    if toolchain.family == "gcc":
        # GCC 12 joins scalar sums of 8 and 16-bit comparisons to vectors that are wrong
        flags.extend(("-Wno-psabi", "-fno-tree-vrp", "-fno-tree-slp-vectorize"))
        # finds nothing to do in kernels, for a seventh of the time where many neighbouring points are read
        flags.append("-fno-predictive-commoning")
    if toolchain.vector_libm:
        flags.append("-DPF_MVEC")
    links = list(_LINK_FLAGS)
    if toolchain.linker:
        links.append(f"-fuse-ld={toolchain.linker}")
    flags += [*isa.compile_flags, *toolchain.flags]
    return [toolchain.path, *toolchain.arguments, *flags, source, "-o", output, *links]


def build_library(
    toolchain: Toolchain,
    isa: Isa,
    source: Path,
    output: Path,
    *,
    name: str = "",
    timeout: float = _BUILD_SECONDS,
) -> None:
    """Build *source* into *output*; `KernelBuildError` holds the command and what the compiler said. It has
    *timeout* seconds.

    A quick linker that is installed may still not work with this compiler: where the build fails with it, the
    compiler's own is tried, and used from then on if that helps.
    """
    plain = dataclasses.replace(toolchain, linker="")
    until = time.monotonic() + timeout
    choices = [plain] if toolchain in _QUICK_LINKER_FAILS or plain == toolchain else [toolchain, plain]
    for choice in choices:
        command = build_command(choice, isa, str(source), str(output))
        try:
            run_program(command, timeout=max(0.1, until - time.monotonic()), name=name or source.name)
            _check_library(output, command, name or source.name)
        except KernelBuildError as error:
            if choice is choices[-1] or error.timed_out:
                raise
        else:
            if choice is not choices[0]:
                _QUICK_LINKER_FAILS.add(toolchain)
            return


def _check_library(output: Path, command: Sequence[str], name: str) -> None:
    """Raise where a compiler that reported success left no library."""
    try:
        # what is no file may never answer
        found = output.read_bytes()[:4] if output.is_file() and not output.is_symlink() else b""
    except OSError:
        found = b""
    if found != b"\x7fELF":
        raise KernelBuildError(
            f"building {name} ended well, but left no library",
            "name another compiler in CXX",
            command=command,
            name=name,
        )


_QUICK_LINKER_FAILS: set[Toolchain] = set()
"""Compilers that link without their quick linker alone, as this process found out."""


def _quick_linker(target: str) -> str:
    """The fastest linker installed for a compiler of this machine; the default one takes three times as
    long."""
    if not target.startswith(os.uname().machine):
        return ""
    return next((name for name in ("mold", "gold") if shutil.which(f"ld.{name}")), "")


def _prints_a_file(command: Sequence[str], library: str) -> bool:
    """Whether a compiler knows where *library* lies (else it repeats the bare name)."""
    done = run_bounded([*command, f"-print-file-name={library}"], timeout=_ASK_SECONDS)
    return os.path.isabs(done.output.strip())


def _has_vector_libm(target: str) -> bool:
    """Whether code for *target* may call libmvec, which the linker finds through libm."""
    if not target.startswith("x86_64") or os.uname().machine != "x86_64":
        return False
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return name == "glibc" and tuple(int(part) for part in version.split(".")[:2]) >= (2, 35)
    except (ValueError, OSError):
        return False
