"""Sources become machine code, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from polyfuse.base.errors import (
    BackendUnavailableError,
    InvalidOptionError,
    KernelBuildError,
    KernelLoadError,
)
from polyfuse.base.settings import Settings, child_environment
from polyfuse.ir.types import DType
from polyfuse.plugin import PluginManager, Source, State
from polyfuse.workers.process import WorkerProcess
from polyfuse_cuda.gpu import known_gpu
from polyfuse_triton.backend import TritonBackend
from polyfuse_triton.build.artifact import Artifact, Variant, entry_name, read_unit, write_unit
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.doctor import findings
from polyfuse_triton.dtypes import pointer_type
from polyfuse_triton.target import known_target, targets_of
from requirements import HAS_GPU, TRITON
from triton_sources import ADD_ONE, META, source

pytest.importorskip("triton", reason=TRITON)

from polyfuse_triton.build import assembler, toolchain

MATMUL = """@triton.jit
def POLYFUSE_KERNEL(in0, out0, ks0, XBLOCK: tl.constexpr):
    i = tl.arange(0, XBLOCK)
    at = i[:, None] * XBLOCK + i[None, :]
    total = tl.zeros((XBLOCK, XBLOCK), tl.float32)
    for k in range(0, ks0):
        a = tl.load(in0 + at + k)
        total = tl.dot(a, a, total)
    tl.store(out0 + at, total)
"""

MANY_VALUES = """@triton.jit
def POLYFUSE_KERNEL(in0, out0, ks0, XBLOCK: tl.constexpr):
    i = tl.arange(0, XBLOCK)
    x = tl.load(in0 + i)
    y = tl.load(in0 + i + ks0)
    for k in range(0, ks0):
        x, y = y * tl.load(in0 + i + k), x + y
    tl.store(out0 + i, x + y)
"""


def options(*archs: int, driver: int = 0, debug: bool = False) -> dict[str, object]:
    return {"archs": list(archs), "driver": driver, "debug": debug}


def test_every_architecture_has_its_code(tmp_path):
    one = source()
    toolchain.build([one], tmp_path, options(80, 90, 100))
    made = read_unit(tmp_path)[one.key]
    assert [v.arch for v in made.variants] == [80, 90, 100]
    assert made.name == "fused_add_one" and made.meta == META
    assert made.symbol == entry_name(one) == f"k_fused_add_one_{one.key[:10]}"
    for variant in made.variants:
        code = (tmp_path / variant.file).read_bytes()
        assert code[:4] == b"\x7fELF" and made.symbol.encode() in code
        assert variant.num_warps == 4 and variant.registers > 0 and variant.spilled_bytes == 0
        assert variant.shared_bytes == 0
    assert len(list(tmp_path.iterdir())) == 4


def test_equal_sources_give_equal_files_anywhere(tmp_path):
    made = []
    for name in ("first", "second/deeper"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        toolchain.build([source()], folder, options(90))
        made.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert made[0] == made[1]
    assert not any(str(tmp_path).encode() in content for content in made[0].values())


def test_the_signature_specialises_the_code(tmp_path):
    """Known alignment gives wide loads; without it each element is loaded alone."""
    texts = []
    for aligned in (True, False):
        args = tuple(type(a)(a.name, a.kind, a.type, aligned) for a in META.args)
        folder = tmp_path / str(aligned)
        folder.mkdir()
        toolchain.build([source(args=args)], folder, options(90, debug=True))
        texts.append(next(folder.glob("*.ptx")).read_text())
    assert "ld.global.v4" in texts[0] and "ld.global.v4" not in texts[1]


def test_contraction_is_as_the_meta_says(tmp_path):
    text = ADD_ONE.replace("tl.load(in0 + i, mask) + 1", "tl.load(in0 + i, mask) * 3.0 + i.to(tl.float32)")
    found = []
    for fuse in (True, False):
        folder = tmp_path / str(fuse)
        folder.mkdir()
        toolchain.build([source(text, fp_fusion=fuse)], folder, options(90, debug=True))
        found.append("fma.rn.f32" in next(folder.glob("*.ptx")).read_text())
    assert found == [True, False]


def test_debug_keeps_the_text_and_the_assembly(tmp_path):
    one = source()
    toolchain.build([one], tmp_path, options(90, debug=True))
    assert entry_name(one) in (tmp_path / f"{one.key}.py").read_text()
    assert entry_name(one) in (tmp_path / f"{one.key}.sm_90.ptx").read_text()


def test_a_mistake_in_the_text_is_shown(tmp_path):
    with pytest.raises(KernelBuildError) as caught:
        toolchain.build([source(ADD_ONE.replace("+ 1,", "+ tl.no_such_thing,"))], tmp_path, options(90))
    assert "fused_add_one for sm_90" in caught.value.cause and "no_such_thing" in caught.value.output


def test_a_parameter_that_the_meta_lacks(tmp_path):
    with pytest.raises(KernelBuildError, match="lacks its parameters XBLOCK"):
        toolchain.build([source(constexprs=())], tmp_path, options(90))


def test_what_the_assembler_says_is_shown_with_its_command(tmp_path):
    asm = 'tl.inline_asm_elementwise("bogus $0, $1;", "=r,r", [i], dtype=tl.int32, is_pure=True, pack=1)'
    with pytest.raises(KernelBuildError) as caught:
        toolchain.build([source(ADD_ONE.replace("+ 1,", f"+ {asm},"))], tmp_path, options(80))
    assert "bogus" in caught.value.output
    assert caught.value.command[0].endswith("ptxas") and "--gpu-name=sm_80" in caught.value.command


def test_more_shared_memory_than_there_is(tmp_path, monkeypatch):
    one = source(MATMUL, constexprs=(("XBLOCK", 64),))
    toolchain.build([one], tmp_path, options(80))
    needed = read_unit(tmp_path)[one.key].variants[0].shared_bytes
    assert 0 < needed < known_gpu(80).shared_bytes
    small = replace(known_gpu(80), shared_bytes=needed - 1)
    monkeypatch.setattr(toolchain, "known_gpu", lambda arch: small)
    with pytest.raises(KernelBuildError, match=rf"needs {needed} bytes of shared memory, and sm_80 has"):
        toolchain.build([one], tmp_path, options(80))


def test_spills_are_counted(tmp_path):
    one = source(MANY_VALUES, constexprs=(("XBLOCK", 4096),), num_warps=1)
    toolchain.build([one], tmp_path, options(90))
    variant = read_unit(tmp_path)[one.key].variants[0]
    assert variant.spilled_bytes > 0 and variant.registers > 0


def test_an_interpreting_triton_compiles_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(KernelBuildError, match="unset it"):
        toolchain.build([source()], tmp_path, options(90))


class TestAssembler:
    def test_tritons_own_where_the_driver_takes_it(self):
        assert assembler.choose_assembler.__wrapped__(90, 0) == assembler.own_assembler(90)
        assert assembler.choose_assembler.__wrapped__(90, 99) == assembler.own_assembler(90)

    def test_the_newest_that_the_driver_takes(self, monkeypatch):
        tools = [SimpleNamespace(path=p, version=v) for p, v in (("a", "12.2"), ("b", "12.9"), ("c", "13.1"))]
        monkeypatch.setattr(assembler, "own_assembler", lambda arch: tools[2])
        monkeypatch.setattr(assembler, "_others", lambda: iter(tools))
        monkeypatch.setattr(assembler, "_knows", lambda path, arch: path != "b" or arch < 100)
        assert assembler.choose_assembler.__wrapped__(90, 12).path == "b"
        assert assembler.choose_assembler.__wrapped__(100, 12).path == "a"
        with pytest.raises(KernelBuildError, match="no assembler for sm_90 found here is that old"):
            assembler.choose_assembler.__wrapped__(90, 11)

    def test_what_an_assembler_knows_is_asked(self):
        tool = assembler.own_assembler(80)
        assert assembler._knows(tool.path, 80) and not assembler._knows(tool.path, 70000)
        assert not assembler._knows("/no/such/program", 80)


class TestInAWorker:
    def test_it_builds_without_touching_the_driver(self, tmp_path):
        """A driver that ends the process when it is initialised would show."""
        driver = tmp_path / "libcuda.so.1"
        code = "int cuInit(unsigned f) { __builtin_trap(); }\n"
        code += "int cuDriverGetVersion(int* v) { *v = 13000; return 0; }\n"
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(driver)]
        subprocess.run(command, input=code, text=True, check=True)
        script = (
            "import sys; from pathlib import Path\n"
            "from polyfuse_triton.build.toolchain import build_in_worker\n"
            "from polyfuse_triton.target import driver_major; from triton_sources import source\n"
            "assert driver_major() == 13\n"
            f"build_in_worker([source()], Path({str(tmp_path)!r}), {options(90, driver=13)!r})\n"
            "assert 'torch' not in sys.modules"
        )
        path = os.pathsep.join((f"{Path(__file__).parents[2]}", os.environ.get("PYTHONPATH", "")))
        env = child_environment(LD_LIBRARY_PATH=str(tmp_path), PYTHONPATH=path)
        subprocess.run([sys.executable, "-c", script], check=True, env=env, timeout=300)
        assert len(read_unit(tmp_path)) == 1

    def test_a_failure_comes_back_in_full(self, tmp_path):
        worker = WorkerProcess()
        try:
            bad = source(ADD_ONE.replace("mask)", "mask, no=1)"))
            function = "polyfuse_triton.build.toolchain:build_in_worker"
            with pytest.raises(KernelBuildError, match="could not compile"):
                worker.build(function, [bad], tmp_path, options(90), 300.0)
            worker.build(function, [source()], tmp_path, options(90), 300.0)
        finally:
            worker.close()
        assert list(read_unit(tmp_path)) == [source().key]


class TestArtifacts:
    def test_a_damaged_listing(self, tmp_path):
        with pytest.raises(KernelLoadError, match="is damaged"):
            read_unit(tmp_path)
        (tmp_path / "kernels.json").write_text('{"kernels": [{"key": "x"}]}')
        with pytest.raises(KernelLoadError, match="is damaged"):
            read_unit(tmp_path)

    def test_which_code_runs_on_which_gpu(self, tmp_path):
        toolchain.build([source()], tmp_path, options(80, 90))
        made = read_unit(tmp_path)[source().key]
        found = {arch: made.variant_for(arch) for arch in (75, 80, 86, 89, 90, 100)}
        assert {arch: v.arch if v else None for arch, v in found.items()} == {
            75: None, 80: 80, 86: 80, 89: 80, 90: 90, 100: None,
        }  # fmt: skip

    def test_names_are_identifiers_and_differ(self):
        names = {entry_name(source(name=name)) for name in ("a.b-c", "1", "a" * 300)}
        assert all(name.isidentifier() and len(name) < 100 for name in names) and len(names) == 3
        assert entry_name(source()) != entry_name(source(num_warps=8))


def test_meta_is_text_and_back():
    assert KernelMeta.parse(META.text()) == META
    assert Source("a", "b", "triton", meta=META.text()).key != Source("a", "b", "triton").key


def test_shared_memory_of_unknown_chips_is_that_of_the_nearest():
    for arch, nearest in ((87, 86), (91, 90)):
        assert known_gpu(arch).shared_bytes == known_gpu(nearest).shared_bytes


def test_pointer_types_are_those_of_triton(tmp_path):
    copy = ADD_ONE.replace("tl.load(in0 + i, mask) + 1", "tl.load(in0 + i, mask)")
    sources = []
    known = [dtype for dtype in DType if "fnuz" not in dtype.value]  # what this maker's chips have
    for dtype in known:
        pointer = pointer_type(dtype)
        args = (MetaArg("in0", "ptr", pointer), MetaArg("out0", "ptr", pointer), META.args[2])
        sources.append(source(copy, args=args))
    toolchain.build(sources, tmp_path, options(90))
    assert len(read_unit(tmp_path)) == len(known)


class TestTargets:
    def test_names_are_read(self):
        assert known_target(" SM_90a ").arch == 90 and known_target("sm_80").multiprocessors == 108
        settings = Settings.resolve(None, {"triton.target": "sm_80, sm_90,sm_80"})
        assert [target.name for target in targets_of(settings)] == ["sm_80", "sm_90"]

    @pytest.mark.parametrize("name", ["sm_70", "90", "sm_", "compute_90", "sm_x"])
    def test_others_are_refused(self, name):
        with pytest.raises(InvalidOptionError, match="no architecture"):
            known_target(name)

    @pytest.mark.skipif(torch.cuda.is_available(), reason=HAS_GPU)
    def test_without_a_gpu_the_backend_declines_in_one_sentence(self):
        with pytest.raises(
            BackendUnavailableError,
            match=r"^(this torch is built without|no NVIDIA GPU)[^.\n]*(\nPF\d+, explained in \S+)?$",
        ):
            TritonBackend(Settings())
        manager = PluginManager(Settings())
        assert manager.backends("cuda")[0].name != "triton"
        assert manager.state("triton").state is State.REFUSED

    def test_the_kinds_of_gpu_here_each_once(self, monkeypatch):
        chips = [(9, 0, "H200"), (8, 6, "A40"), (9, 0, "H200"), (7, 5, "T4")]

        def properties(index: int) -> object:
            major, minor, name = chips[index]
            return SimpleNamespace(
                major=major, minor=minor, name=name, multi_processor_count=100 + index,
                shared_memory_per_block_optin=1000, L2_cache_size=2000,
            )  # fmt: skip

        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(chips))
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
        found = targets_of(Settings())
        assert [(t.arch, t.multiprocessors, t.model) for t in found] == [(90, 100, "H200"), (86, 101, "A40")]
        chips[:] = [(7, 5, "T4")]
        with pytest.raises(BackendUnavailableError, match=r"older than compute capability 8\.0"):
            targets_of(Settings())


class TestBackend:
    def backend(self, **options: object) -> TritonBackend:
        return TritonBackend(Settings.resolve(None, {"triton.target": "sm_90", **options}))

    def test_what_it_says_of_itself(self):
        facts = self.backend().describe()
        assert facts["targets"] == "sm_90" and facts["triton"]
        assert self.backend(**{"triton.debug": "1"}).describe() != facts
        assert self.backend().machine() == {"gpu": "sm_90"}
        assert self.backend().worker_options()["archs"] == [90]

    def test_spills_are_held_against_a_kernel(self, tmp_path):
        backend, meta = self.backend(), META
        for spilled in (0, 16, 4000):
            variant = Variant(90, "x.cubin", 0, 4, 255, spilled)
            write_unit(tmp_path, [Artifact("key", "fused", "k_fused", meta, (variant,))], "test")
            assert bool(backend.review(tmp_path, "key")) is (spilled < 1000)
        assert "spills 4000 bytes" in str(backend.review(tmp_path, "key"))

    def test_it_builds_here_too(self, tmp_path):
        backend, one = self.backend(), source()
        backend.build([one], tmp_path)
        assert backend.review(tmp_path, one.key)

    def test_the_doctor_compiles_something(self):
        settings = Settings.resolve(None, {"triton.target": "sm_90"})
        found = {finding.subject: finding for finding in findings(settings)}
        assert found["targets"].detail.startswith("sm_90")
        assert found["trial build"].ok and "sm_90" in found["trial build"].detail
        assert "assembler" in found and found["launcher"].ok

    def test_warm_up_compiles_something(self):
        toolchain.warm_up(options(90))
