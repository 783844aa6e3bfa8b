"""What `polyfuse doctor` says of Halide: which one it is, and whether a kernel builds and runs."""

from __future__ import annotations

import ctypes
import tempfile
from importlib import metadata
from pathlib import Path

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.settings import Settings
from polyfuse.plugin import Finding, Source

_TRIAL = f"""def {Source.SYMBOL}(p):
    in0 = p.input("in0", "f32")
    p.axis("i0", 4)
    p.store("points", False, [[1]], lambda i0: (add(in0(i0), in0(i0)), ))
"""
_META = (
    '{"buffers": [0, 1], "count": 2, "empty": false, "inputs": [0], "limits": [], '
    '"outputs": [{"operand": 1, "width": 4, "offset": "0", "dims": [["4", "1"]]}], "sizes": []}'
)


def findings(settings: Settings) -> list[Finding]:
    """Halide, the CPU, and a trial build."""
    from polyfuse_halide.backend import HalideBackend

    try:
        backend = HalideBackend(settings)
    except PolyfuseError as error:
        return [Finding("halide", False, error.cause, error.fix)]
    lanes = backend.cpu.lanes
    return [
        Finding("halide", True, metadata.version("halide")),
        Finding("cpu", True, f"{backend.cpu.name}, vectors of {lanes} numbers of 32 bits"),
        _trial_build(backend),
    ]


def _trial_build(backend: object) -> Finding:
    from polyfuse_halide.backend import HalideBackend

    assert isinstance(backend, HalideBackend)
    numbers, doubled = (ctypes.c_float * 4)(1, 2, 3, 4), (ctypes.c_float * 4)()
    source = Source("trial", _TRIAL, "halide", meta=_META)
    try:
        with tempfile.TemporaryDirectory(prefix="polyfuse-doctor-") as name:
            backend.build([source], Path(name))
            launch = backend.load(Path(name))[source.key]
            launch(ctypes.addressof(numbers), ctypes.addressof(doubled))
    except PolyfuseError as error:
        return Finding("trial build", False, error.cause, error.fix)
    if list(doubled) != [2.0, 4.0, 6.0, 8.0]:
        return Finding("trial build", False, f"a kernel gave {list(doubled)}", "report it with this output")
    return Finding("trial build", True, "a kernel was built and ran, without a compiler of the system")
