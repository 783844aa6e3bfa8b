"""Programs and kernels for 64-bit Arm: what builds them, and an emulator that runs them here."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfuse.base.process import run_program
from polyfuse.plugin import Source
from polyfuse_cpp.backend import KERNEL_LANGUAGE, CppBackend, _texts
from polyfuse_cpp.loading import KEYS
from polyfuse_cpp.toolchain import build_command

COMPILER, C_COMPILER, QEMU = "aarch64-linux-gnu-g++", "aarch64-linux-gnu-gcc", "qemu-aarch64"

_PAGE = 4096


@dataclass(frozen=True)
class Emulator:
    """A machine with an instruction set.

    Attributes:
        isa: the C++ backend's name of it.
        cpu: what QEMU calls a CPU that has it.
    """

    isa: str
    cpu: str

    @property
    def command(self) -> tuple[str, ...]:
        """What a program's path and arguments follow."""
        return (shutil.which(QEMU) or QEMU, "-cpu", self.cpu, "-L", "/usr/aarch64-linux-gnu")

    @property
    def options(self) -> dict[str, Any]:
        """Options of a compilation for the machine."""
        return {"backends": ["cpp"], "strict": True, "cpp.compiler": COMPILER, "cpp.isa": self.isa}


NEON = Emulator("neon", "cortex-a57")
DOTS = Emulator("neon-dot", "max,sve=off")
SVE = Emulator("sve256", "max,sve256=on,sve512=off")
EMULATORS = {emulator.isa: emulator for emulator in (NEON, DOTS, SVE)}


def machines(*quick: Emulator) -> pytest.MarkDecorator:
    """All of them for parametrize, and which are among the quick tests."""
    rows = [
        pytest.param(emulator, id=name, marks=() if emulator in quick else pytest.mark.slow)
        for name, emulator in EMULATORS.items()
    ]
    return pytest.mark.parametrize("emulator", rows)


def disassembled(program: Path) -> str:
    """The instructions of a program."""
    command = [f"{COMPILER.removesuffix('g++')}objdump", "-d", "--no-show-raw-insn", str(program)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def needs_arm() -> None:
    """Skip where programs for Arm can be neither built nor run."""
    for program in (COMPILER, QEMU):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: the test builds for Arm, and runs what it built")


def emulate_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build kernels of the C++ backend into programs, one a unit, which an emulator runs, fed by a pipe."""
    needs_arm()
    monkeypatch.setattr(CppBackend, "build", _build)
    monkeypatch.setattr(CppBackend, "load", _load)


def _build(backend: CppBackend, sources: Sequence[Source], folder: Path) -> None:
    assert all(source.language == KERNEL_LANGUAGE for source in sources)
    signatures = {source.symbol: source.meta.split(";")[0] for source in sources}
    unit, program = folder / "kernels.cpp", folder / "kernels"
    unit.write_text(backend._head(sources) + _texts(sources) + _main(signatures))
    command = build_command(backend.toolchain, backend.isa, str(unit), str(program))
    command = [flag for flag in command if flag not in ("-shared", "-fPIC")]
    run_program([*command, "-static", "-lm"], timeout=600.0, name="kernels for Arm")
    rows = "".join(f"{s.key} {s.symbol} {signatures[s.symbol]}\n" for s in sources)
    (folder / KEYS).write_text(rows, encoding="utf-8")


def _load(backend: CppBackend, folder: Path) -> Mapping[str, Any]:
    process = _Process(folder / "kernels", EMULATORS[backend.isa.name])
    rows = [row.split(" ") for row in (folder / KEYS).read_text(encoding="utf-8").splitlines()]
    symbols = list(dict.fromkeys(symbol for _, symbol, _ in rows))
    return {key: _Kernel(process, symbols.index(symbol), kinds) for key, symbol, kinds in rows}


_CALLS = {"p": "any{{at + a[{0}].i}}", "i": "pf::i64(a[{0}].i)", "d": "a[{0}].d"}


def _main(signatures: Mapping[str, str]) -> str:
    """A program that reads which kernel to launch, and its arguments: numbers, and offsets in a file."""
    cases = []
    for position, (name, kinds) in enumerate(signatures.items()):
        arguments = ", ".join(_CALLS[kind].format(at) for at, kind in enumerate(kinds))
        cases.append(f"      case {position}: {name}({arguments}); break;\n")
    return _MAIN.replace("CASES", "".join(cases))


_MAIN = """
// by hand: the vector layer declares a function of a header in its own way
extern "C" {
long read(int, void*, unsigned long);
long write(int, const void*, unsigned long);
int open(const char*, int, ...);
int close(int);
void* mmap(void*, unsigned long, int, int, int, long);
int munmap(void*, unsigned long);
}
enum { read_and_write = 2, readable_and_writable = 3, shared = 1 };
union word { long long i; double d; };
struct any { char* p; template <class T> operator T*() const { return (T*)p; } };
static bool get(void* to, long n) {
  for (long got; n > 0; n -= got, to = (char*)to + got)
    if ((got = read(0, to, n)) <= 0) return false;
  return true;
}
int main(int, char** argv) {
  long long head[3];  // kernel, arguments, bytes of the file
  word a[512];
  while (get(head, sizeof head) && get(a, head[1] * 8)) {
    int file = open(argv[1], read_and_write);
    char* at = (char*)mmap(nullptr, head[2], readable_and_writable, shared, file, 0);
    switch (head[0]) {
CASES    }
    munmap(at, head[2]);
    close(file);
    char done = 1;
    if (write(1, &done, 1) != 1) return 1;
  }
}
"""


class _Process:
    """An emulated program that waits for launches, with a file that it shares with this process."""

    def __init__(self, program: Path, emulator: Emulator) -> None:
        number, self._name = tempfile.mkstemp(prefix="polyfuse-emulated-")
        self._file = os.fdopen(number, "r+b")
        command = [*emulator.command, str(program), self._name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def launch(self, kernel: int, kinds: str, arguments: Sequence[Any]) -> None:
        """Launch a kernel on copies of all storages of its arguments, and copy them back."""
        offsets: dict[int, tuple[int, torch.UntypedStorage]] = {}
        size, words = _PAGE, list[Any]()
        for kind, argument in zip(kinds, arguments, strict=True):
            if kind != "p":
                words.append((ctypes.c_double if kind == "d" else ctypes.c_int64)(argument))
                continue
            storage = argument.untyped_storage()
            if storage.data_ptr() not in offsets:
                offsets[storage.data_ptr()] = size + storage.data_ptr() % _PAGE, storage
                size += (storage.nbytes() + 2 * _PAGE) // _PAGE * _PAGE
            start, _ = offsets[storage.data_ptr()]
            words.append(ctypes.c_int64(start + argument.data_ptr() - storage.data_ptr()))
        self._file.truncate(size)
        with mmap.mmap(self._file.fileno(), size) as memory:
            view = memoryview(memory)
            for start, storage in offsets.values():
                view[start : start + storage.nbytes()] = _bytes(storage)
            self._call([ctypes.c_int64(n) for n in (kernel, len(words), size)] + words)
            for start, storage in offsets.values():
                _bytes(storage)[:] = view[start : start + storage.nbytes()]
            view.release()

    def _call(self, words: Sequence[Any]) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"".join(bytes(word) for word in words))
        self._process.stdin.flush()
        if self._process.stdout.read(1) != b"\x01":
            raise RuntimeError(f"the emulated program ended with status {self._process.wait()}")

    def __del__(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._file.close()
        os.unlink(self._name)


def _bytes(storage: torch.UntypedStorage) -> memoryview:
    kind = ctypes.c_char * storage.nbytes()
    return memoryview(kind.from_address(storage.data_ptr()) if storage.nbytes() else b"").cast("B")


class _Kernel:
    """What the compiler launches."""

    def __init__(self, process: _Process, position: int, kinds: str) -> None:
        self._process, self._position, self._kinds = process, position, kinds

    def __call__(self, *arguments: Any) -> None:
        self._process.launch(self._position, self._kinds, arguments)
