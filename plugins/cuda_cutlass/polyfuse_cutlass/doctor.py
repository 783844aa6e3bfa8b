"""What `polyfuse doctor` says of the GPU and the compiler of matrix multiplications."""

from __future__ import annotations

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.settings import Settings
from polyfuse.plugin import Finding
from polyfuse_cuda.toolchain import find_compiler
from polyfuse_cutlass.target import target_of


def findings(settings: Settings) -> list[Finding]:
    """The GPU, and what compiles for it."""
    found: list[Finding] = []
    try:
        target = target_of(settings)
        found.append(Finding("target", True, f"{target.name} ({target.model or 'no GPU'})"))
    except PolyfuseError as error:
        # not having such a GPU is a fact about the machine, not an illness
        found.append(Finding("target", True, error.cause, error.fix))
    try:
        compiler = find_compiler(str(settings.plugin_option("cutlass", "compiler", "") or ""))
        found.append(Finding("compiler", True, f"{compiler.kind} {compiler.version} {compiler.path}".strip()))
    except PolyfuseError as error:
        found.append(Finding("compiler", True, error.cause, error.fix))
    return found
