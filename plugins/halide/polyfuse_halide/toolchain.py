"""Building kernels: from generated programs to a folder of object files. Runs in a build worker."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyfuse.base.errors import KernelBuildError, UnsupportedError
from polyfuse.base.process import library_errors
from polyfuse.plugin import Source
from polyfuse_cuda.gpu import OLDEST
from polyfuse_halide.schedules.autoschedule import SECONDS, apart, autoschedule

KEYS = "kernels.json"
"""What a built folder says of its kernels."""

_FAILS = "guaranteed to fail an assertion"

_FEATURES = ("no_runtime", "no_asserts", "no_bounds_query", "strict_float")


def warm_up(options: Mapping[str, Any]) -> None:
    """Compile something, so that Halide and its LLVM are there when a kernel comes."""
    text = f"""def {Source.SYMBOL}(p):
    in0 = p.input("in0", "f32")
    p.axis("i0", 64)
    p.store("points", False, [[1]], lambda i0: (in0(i0), ))
"""
    with tempfile.TemporaryDirectory() as folder:
        build([Source("warm_up", text, "halide")], Path(folder), options)


def build_in_worker(sources: Sequence[Source], folder: Path, options: Mapping[str, Any]) -> None:
    """`build` in a process of its own: Halide's words, which go to the error stream, become part of the
    error.
    """
    with library_errors():
        build(sources, folder, options)


def build(sources: Sequence[Source], folder: Path, options: Mapping[str, Any]) -> None:
    """Compile each source to an object file.

    Args:
        sources: kernels as generated programs; their meta goes into the folder as it is.
        folder: to fill.
        options: `target`, what to compile for; `keep`, whether to leave Halide's loops beside each kernel.
    """
    rows: list[dict[str, str]] = []
    for source in {s.key: s for s in sources}.values():
        _build_one(source, folder, options)
        rows.append({"key": source.key, "symbol": source.symbol, "meta": source.meta, "name": source.name})
    (folder / KEYS).write_text(json.dumps(rows, indent=0), encoding="utf-8")


def program_of(source: Source) -> Any:
    """What a generated program builds: inputs, stages, what is stored."""
    import polyfuse_halide.library as library

    namespace: dict[str, Any] = dict(vars(library))
    exec(compile(source.rendered(), f"{source.name}.py", "exec"), namespace)
    facts = _facts(source)
    kind = library.DeviceProgram if "device" in facts else library.ScheduledProgram
    program: Any = library.AutomaticProgram() if "automatic" in facts else kind()
    if "device" in facts:
        namespace.update(library.DEVICE_FUNCTIONS)
    namespace[source.symbol](program)
    return program


def _facts(source: Source) -> Mapping[str, Any]:
    """What a kernel's meta says of it: `device`, that it runs on one; `automatic`, which of Halide's own
    schedulers is asked for its schedule; `checks`, `contracts`, `empty`, `loose`.
    """
    return json.loads(source.meta) if source.meta else {}


def _build_one(source: Source, folder: Path, options: Mapping[str, Any]) -> None:
    facts = _facts(source)
    try:
        if "automatic" in facts:
            apart(lambda: _compile_attentively(source, folder, options), SECONDS)
        else:
            _compile_attentively(source, folder, options)
        if "device" in facts and not facts["empty"]:
            check_memory(folder / f"{source.key}.o")
    except UnsupportedError:
        raise  # of an automatic schedule
    except Exception as error:
        raise KernelBuildError(
            f"Halide could not compile kernel {source.name} ({type(error).__name__}: {_first_line(error)})",
            "the output below says why",
            output=f"error: {error}\n{source.text}",
            name=source.name,
        ) from error


def _compile_attentively(source: Source, folder: Path, options: Mapping[str, Any]) -> None:
    """Compile, and refuse what Halide warns of: kernels assert nothing themselves, and one whose bounds are
    too small computes outside of what a stage has. Halide's bindings print warnings to Python's standard
    output.
    """
    with contextlib.redirect_stdout(io.StringIO()) as said:
        _compile(source, folder, options)
    words = said.getvalue()
    if _FAILS in words:
        raise ValueError(words.strip().partition("\n\n")[0])
    if words:
        print(words, file=sys.stderr)


def _compile(source: Source, folder: Path, options: Mapping[str, Any]) -> None:
    import halide as hl

    from polyfuse_halide.library.contraction import contraction

    facts = _facts(source)
    contracts = "contracts" in facts and "automatic" not in facts
    with contraction(contracts):
        program = program_of(source)
    pipeline, arguments = program.finish()
    features = list(_FEATURES)
    if contracts:
        # stages say themselves what is strict
        features.remove("strict_float")
    if "device" in facts:
        if facts["loose"]:
            features.remove("strict_float")
        features += ["cuda", f"cuda_capability_{options.get('capability') or OLDEST}"]
    elif "checks" in facts:
        features.remove("no_asserts")
    target = "-".join((str(options.get("target") or "host"), *features))
    if "automatic" in facts:
        autoschedule(program, pipeline, arguments, target)
    wanted = {hl.OutputFileType.object: str(folder / f"{source.key}.o")}
    if options.get("keep"):
        wanted[hl.OutputFileType.stmt] = str(folder / f"{source.key}.stmt")
        wanted[hl.OutputFileType.assembly] = str(folder / f"{source.key}.s")
    pipeline.compile_to(wanted, arguments, source.symbol, hl.Target(target))


def check_memory(file: Path) -> None:
    """Launches share no memory but the tensors, because a recorded one must allocate nothing.

    Raises:
        ValueError: they would need other memory, or a part of the kernel runs on the CPU.
    """
    data = file.read_bytes()
    if any(name in data for name in (b"halide_device_malloc", b"halide_device_and_host_malloc")):
        raise ValueError("a launch would need memory of its own on the device")
    if b"halide_cuda_run" not in data or b"halide_copy_to_host" in data:
        raise ValueError("a part of it would run on the CPU")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no reason given"
