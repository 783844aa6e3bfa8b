"""What `polyfuse doctor` says of the C++ compiler: which one it is, and whether a kernel builds and runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.settings import Settings
from polyfuse.plugin import Finding
from polyfuse_cpp.bindings import bindings_text, load_library
from polyfuse_cpp.isa import Isa, choose_isa
from polyfuse_cpp.prelude import prelude_for
from polyfuse_cpp.toolchain import Toolchain, build_library, find_toolchain

_TRIAL = 'extern "C" void trial(long long* out, long long n) { *out = n + omp_get_max_threads(); }\n'


def findings(settings: Settings) -> list[Finding]:
    """The compiler, the instruction set, and a trial build."""
    try:
        isa = choose_isa(str(settings.plugin_option("cpp", "isa", "") or ""))
        toolchain = find_toolchain(str(settings.plugin_option("cpp", "compiler", "") or ""))
    except PolyfuseError as error:
        return [Finding("compiler", False, error.cause, error.fix)]
    found = [
        Finding("compiler", True, f"{toolchain.path}: {toolchain.version}"),
        Finding("instruction set", True, isa.name),
        Finding("linker", True, toolchain.linker or "the default; mold or gold would be quicker"),
    ]
    return [*found, _trial_build(toolchain, isa)]


def _trial_build(toolchain: Toolchain, isa: Isa) -> Finding:
    from ctypes import addressof, c_longlong

    number = c_longlong(0)
    try:
        with tempfile.TemporaryDirectory(prefix="polyfuse-doctor-") as name:
            source, library = Path(name) / "trial.cpp", Path(name) / "trial.so"
            head = prelude_for(("omp",), lanes=isa.lanes, register_bytes=isa.register_bytes)
            source.write_text(head + _TRIAL + bindings_text({"trial": "pi"}), encoding="utf-8")
            build_library(toolchain, isa, source, library, name="a trial kernel")
            load_library(library)["trial"](addressof(number), 1)
    except PolyfuseError as error:
        return Finding("trial build", False, error.cause, error.fix)
    return Finding("trial build", True, f"a kernel was built and ran, with up to {number.value - 1} threads")
