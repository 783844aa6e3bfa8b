"""Calls of packages without Python, for tests: `native_runner.c` is compiled and run in its own process."""

from __future__ import annotations

import functools
import math
import os
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import polyfuse_cpp
from emulators import C_COMPILER, Emulator

__all__ = ["NativeResult", "build", "call", "libraries_of"]

HEADERS = Path(polyfuse_cpp.__file__).parent / "model"

_TYPES = (
    *(None, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


@dataclass(frozen=True)
class NativeResult:
    """What one call gave.

    Attributes:
        error: why it failed, or nothing.
        results: tensors; None where there was none.
        same: for each result, the position of the input at the same address, or -1.
        inputs: as they were afterwards.
    """

    error: str
    results: tuple[torch.Tensor | None, ...] = ()
    same: tuple[int, ...] = ()
    inputs: tuple[torch.Tensor, ...] = ()


def build(source: Path, output: Path, headers: Path = HEADERS, compiler: str = "") -> Path:
    """Compile a C program against the headers of packages."""
    compiler = compiler or shutil.which("gcc") or shutil.which("cc") or ""
    assert compiler
    command = [
        compiler,
        "-std=gnu99",
        "-O1",
        "-Wall",
        "-Werror",
        *shlex.split(os.environ.get("CFLAGS", "")),
        f"-I{headers}",
        str(source),
        "-o",
        str(output),
    ]
    done = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return output


@functools.cache
def _runner(compiler: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="polyfuse-runner-"))
    return build(Path(__file__).with_name("native_runner.c"), folder / "runner", compiler=compiler)


def libraries_of(library: Path) -> str:
    """The libraries that one needs, as the dynamic linker finds them."""
    done = subprocess.run(["ldd", str(library)], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def call(
    path: Path,
    calls: Sequence[Sequence[torch.Tensor]],
    *,
    entry: str = "forward",
    threads: int = 1,
    given: bool = False,
    variables: Mapping[str, str] | None = None,
    emulator: Emulator | None = None,
) -> list[NativeResult]:
    """Call an entry several times, one after another.

    Args:
        path: of the package or a folder.
        calls: the inputs of each; numbers are tensors without dimensions.
        threads: how many make the same call at once; their results are the same, or the process fails.
        given: whether the caller has memory for results.
        variables: of the process's environment.
        emulator: what runs the process where the package is for another machine.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / "in", Path(folder) / "out"]
        inputs = b"".join(_written(tensor) for tensors in calls for tensor in tensors)
        files[0].write_bytes(struct.pack("=q", len(calls)) + inputs)
        prefix = emulator.command if emulator else ()
        arguments = [str(path), entry, *map(str, files), str(threads), str(int(given))]
        done = subprocess.run(
            [*prefix, str(_runner(C_COMPILER if emulator else "")), *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            env={
                "PATH": "/nowhere",
                "OMP_NUM_THREADS": "2",
                "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", ""),
                **(variables or {}),
            },
        )
        assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
        reader = _Reader(files[1].read_bytes())
    return [reader.result(inputs) for inputs in calls]


def _memory(tensor: torch.Tensor) -> bytes:
    """What a tensor shows, with gaps and without repetition."""
    if not tensor.numel():
        return b""
    first = tensor.storage_offset()
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return bytes(tensor.untyped_storage())[first * tensor.itemsize : (first + extent) * tensor.itemsize]


def _written(tensor: torch.Tensor) -> bytes:
    memory = _memory(tensor)
    numbers = (_TYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *tensor.stride(), len(memory))
    return struct.pack(f"={len(numbers)}q", *numbers) + memory


class _Reader:
    """Takes results from bytes, one after another."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def result(self, inputs: Sequence[torch.Tensor]) -> NativeResult:
        """The next call's."""
        if self._number():
            return NativeResult(self._bytes(self._number()).decode())
        results, same = [], []
        for _ in range(self._number()):
            dtype, rank = _TYPES[self._number()], self._number()
            sizes = [self._number() for _ in range(rank)]
            same.append(self._number())
            results.append(None if dtype is None else self._tensor(dtype, sizes))
        after = []
        for given in inputs:
            memory = self._tensor(torch.uint8, [len(_memory(given))]).view(given.dtype)
            after.append(memory.as_strided(given.shape, given.stride()))
        return NativeResult("", tuple(results), tuple(same), tuple(after))

    def _number(self) -> int:
        return int(struct.unpack("=q", self._bytes(8))[0])

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._content[self._at - count : self._at]

    def _tensor(self, dtype: torch.dtype, sizes: Sequence[int]) -> torch.Tensor:
        count = math.prod(sizes)
        memory = bytearray(self._bytes(count * dtype.itemsize))
        flat = torch.frombuffer(memory, dtype=dtype) if memory else torch.empty(0, dtype=dtype)
        return flat.view(sizes)
