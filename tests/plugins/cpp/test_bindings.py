"""The C++ toolchain and the Python callables of built kernels: arguments, errors, threads, instruction
sets."""

from __future__ import annotations

import gc
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
import torch

from cpp_layer import levels
from polyfuse.base.errors import (
    BackendUnavailableError,
    InvalidOptionError,
    KernelBuildError,
    KernelLoadError,
)
from polyfuse.base.settings import Settings
from polyfuse.runtime.libraries import SharedLibrary
from polyfuse.torch_compat.bindings import tensor_data_ptr_address
from polyfuse_cpp.backend import CppBackend
from polyfuse_cpp.bindings import KernelCall, bindings_text, load_library
from polyfuse_cpp.isa import ISAS, choose_isa, detect_isa
from polyfuse_cpp.prelude import FEATURES, features_for, needed_headers, prelude_for
from polyfuse_cpp.toolchain import build_command, build_library, find_toolchain

KERNELS = """
using namespace pf;
extern "C" void axpy(f64 k, const f32* x, f32* y, i64 n) {
  for (i64 i = 0; i < n; ++i) y[i] += f32(k) * x[i];
}
extern "C" void threads(i32* o) { o[0] = omp_get_max_threads(); }
extern "C" void wait_for(volatile i32* flag) { for (team_for(1, 1 << 20); !*flag;) {} }
extern "C" void nothing() {}
"""
SIGNATURES = {"axpy": "dppi", "threads": "p", "wait_for": "p", "nothing": ""}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bindings")
    (folder / "k.cpp").write_text(prelude_for(["kernel"]) + KERNELS + bindings_text(SIGNATURES))
    build_library(find_toolchain(), detect_isa(), folder / "k.cpp", folder / "k.so")
    return folder / "k.so"


@pytest.fixture(scope="module")
def calls(library: Path) -> dict[str, KernelCall]:
    return load_library(library, tensor_data_ptr_address())


def test_tensors_and_addresses_are_pointers(calls: dict[str, KernelCall]) -> None:
    x, y = torch.arange(4.0), torch.ones(4)
    assert calls["axpy"](2, x, y, 4) is None
    assert y.tolist() == [1, 3, 5, 7]
    calls["axpy"](1.0, x.data_ptr(), torch.nn.Parameter(y, requires_grad=False), 3)
    assert y.tolist() == [1, 4, 7, 7]
    assert calls["nothing"]() is None


def test_wrong_arguments_raise(calls: dict[str, KernelCall]) -> None:
    x = torch.ones(4)
    wrong = [
        (), (1.0, x, x), (1.0, x, x, 1, 1), ("a", x, x, 1), (1.0, "x", x, 1), (1.0, None, x, 1),
        (1.0, x, [1], 1),
        (1.0, x, x, 1.5), (1.0, x, x, None), (None, x, x, 1), (1.0, True, x, 0), (1.0, x.to_sparse(), x, 0),
    ]  # fmt: skip
    for arguments in wrong:
        with pytest.raises(TypeError):
            calls["axpy"](*arguments)
    for arguments in ((1.0, 2**80, x, 0), (1.0, x, x, 2**70), (10**400, x, x, 0)):
        with pytest.raises(OverflowError):
            calls["axpy"](*arguments)
    with pytest.raises(TypeError):
        calls["axpy"](1.0, x, x, n=4)
    with pytest.raises(TypeError, match="axpy takes 4 arguments, got 3"):
        calls["axpy"](1.0, x, x)


def test_without_the_tensor_function_only_addresses_pass(library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.so"  # the loader keeps one instance per file
    shutil.copy(library, copy)
    calls = load_library(copy)
    y = torch.zeros(2)
    calls["axpy"](1.0, torch.ones(2).data_ptr(), y.data_ptr(), 0)
    with pytest.raises(TypeError, match="must be an address"):
        calls["axpy"](1.0, y, y, 2)


def test_other_threads_run_while_a_kernel_does(calls: dict[str, KernelCall]) -> None:
    flag = torch.zeros(1, dtype=torch.int32)
    worker = threading.Thread(target=calls["wait_for"], args=(flag,))
    worker.start()
    flag[0] = 1
    worker.join(timeout=60)
    assert not worker.is_alive()


def test_kernels_share_torchs_thread_pool(calls: dict[str, KernelCall]) -> None:
    before = torch.get_num_threads()
    seen = torch.zeros(1, dtype=torch.int32)
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            calls["threads"](seen)
            assert seen.item() == n
    finally:
        torch.set_num_threads(before)
    loaded = {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line
    }
    assert len(loaded) == 1, f"two OpenMP run times: {loaded}"


def test_failures_say_what_happened(tmp_path: Path) -> None:
    (tmp_path / "bad.cpp").write_text("int f( {")
    with pytest.raises(KernelBuildError) as caught:
        build_library(find_toolchain(), ISAS["scalar"], tmp_path / "bad.cpp", tmp_path / "bad.so", name="bad")
    assert "bad.cpp" in caught.value.output and "-O2" in caught.value.command
    (tmp_path / "junk.so").write_text("junk")
    with pytest.raises(KernelLoadError):
        load_library(tmp_path / "junk.so")
    with pytest.raises(BackendUnavailableError):
        find_toolchain("no-such-compiler")
    with pytest.raises(BackendUnavailableError):
        find_toolchain(shutil.which("true") or "/bin/true")
    with pytest.raises(ValueError, match="letters are p, i and d"):
        bindings_text({"k": "pz"})


def test_flags_of_the_user_stand_last_and_are_part_of_keys(tmp_path: Path) -> None:
    toolchain = find_toolchain(flags='-O3 "-DNAME=a b"')
    command = build_command(toolchain, ISAS["scalar"], "k.cpp", "k.so")
    assert command.index("-O2") < command.index("-O3") < command.index("k.cpp")
    assert "-DNAME=a b" in command and toolchain.fingerprint != find_toolchain().fingerprint
    with pytest.raises(BackendUnavailableError, match=r"mend the option cpp\.flags"):
        find_toolchain(flags='"')
    backend = CppBackend(Settings(plugin_options=(("cpp.flags", "-O1"),)))
    assert "-O1" in backend.toolchain.flags and "-O1" in backend.describe()["compiler"]


def test_instruction_sets() -> None:
    everything = frozenset(ISAS["avx512"].cpu_flags)
    assert detect_isa("x86_64", everything).name == "avx512"
    assert detect_isa("x86_64", everything - {"avx512dq"}).name == "avx2"
    assert detect_isa("x86_64", frozenset()).name == "sse"
    assert detect_isa("aarch64", frozenset()).name == "neon"
    assert detect_isa("aarch64", frozenset({"asimddp", "bf16", "i8mm", "sve"})).name == "neon-dot"
    assert detect_isa("aarch64", frozenset(ISAS["sve256"].cpu_flags)).name == "sve256"
    assert detect_isa("riscv64", frozenset()).name == "scalar"
    assert choose_isa("auto") == detect_isa()
    with pytest.raises(InvalidOptionError):
        choose_isa("avx1024")


def test_features() -> None:
    assert needed_headers(["trig_f32"])[-2:] == ("math_f32", "trig_f32")
    assert features_for("sin", "f32") == ("trig_f32",)
    assert features_for("add", "f32") == ()
    with pytest.raises(ValueError, match="unknown prelude feature"):
        needed_headers(["nonsense"])
    assert "#include" not in prelude_for(FEATURES)


def test_the_whole_layer_compiles_without_warnings(tmp_path: Path) -> None:
    toolchain = find_toolchain()
    for level in levels()[:1]:
        (tmp_path / "all.cpp").write_text(
            prelude_for(FEATURES, lanes=level.lanes, register_bytes=level.isa.register_bytes)
        )
        command = build_command(toolchain, level.isa, str(tmp_path / "all.cpp"), str(tmp_path / "all.so"))
        command = [flag for flag in command if flag != "-w"] + [
            "-Wall",
            "-Wno-unused-function",
            "-Wno-ignored-attributes",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and not done.stderr, done.stderr


class Last:
    """Garbage with kernels, whose finalizer opens other libraries, as other threads may."""

    def __init__(self, library: Path, other: Path) -> None:
        self.calls, self.other, self.itself = load_library(library), other, self

    def __del__(self) -> None:
        for _ in range(4):
            SharedLibrary(self.other)
        found.append(str(self.calls["nothing"].__self__.path) in Path("/proc/self/maps").read_text())
        if len(found) == 1:
            found.append(self.calls["nothing"])


found: list[object] = []


def test_a_library_outlives_the_garbage_that_its_kernels_are(library: Path, tmp_path: Path) -> None:
    """Finalizers of garbage are called before any of it goes, and may make it reachable again."""
    copies = [shutil.copy(library, tmp_path / f"{name}.so") for name in ("revived", "gone", "other")]
    for copy in copies[:2]:
        Last(copy, copies[2])
        gc.collect()
    inside, revived, inside_later = found
    assert inside and inside_later
    assert callable(revived) and revived() is None
    for _ in range(4):
        SharedLibrary(copies[2])
    maps = Path("/proc/self/maps").read_text()
    assert str(copies[0]) in maps and str(copies[1]) not in maps
    del revived
    found.clear()
    for _ in range(4):
        SharedLibrary(copies[2])
    assert str(copies[0]) not in Path("/proc/self/maps").read_text()
