"""Candidates of CUTLASS's own: their texts, their order, what is refused, and where headers come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutlass_kernels import GELU, RESIDUAL, product
from polyfuse.base.errors import (
    BackendUnavailableError,
    InvalidOptionError,
    KernelBuildError,
    UnsupportedError,
)
from polyfuse.base.settings import Settings
from polyfuse.plugin import Source
from polyfuse_cuda import toolchain
from polyfuse_cutlass.backend import CutlassBackend
from polyfuse_cutlass.build import headers
from polyfuse_cutlass.build.artifact import read_unit
from polyfuse_cutlass.build.toolchain import build_in_worker
from polyfuse_cutlass.doctor import findings
from polyfuse_cutlass.space import emit
from polyfuse_cutlass.target import Target
from polyfuse_cutlass.templates.ampere import AmpereTile
from polyfuse_cutlass.templates.candidates import is_library, library_configs, library_source
from polyfuse_cutlass.templates.collective import Collective
from polyfuse_cutlass.templates.meta import LinkedMeta
from polyfuse_cutlass.templates.text import LANGUAGE
from requirements import CUTLASS, needs_nvcc

HOPPER, AMPERE = Target(), Target(80)
COOPERATIVE, STREAM = Collective(), Collective(128, 128, 2, 1, "stream-K")
CASES = {
    "collective_gelu": (product(512, 1024, 512, epilogue=GELU), COOPERATIVE.config, HOPPER),
    "collective_batch": (
        product(512, 1024, 512, epilogue=RESIDUAL, right="columns", batch=3),
        STREAM.config,
        HOPPER,
    ),
    "collective_few_rows": (
        product(13, 1024, 512, dtype="f8e4m3", dynamic=True),
        Collective(64, 32, 1, 1, "ping-pong", True).config,
        HOPPER,
    ),
    "ampere_gelu": (product(512, 1024, 512, epilogue=GELU), AmpereTile().config, AMPERE),
    "ampere_integers": (product(64, 131, 64, dtype="i8", out="f32"), None, AMPERE),
}


@pytest.mark.parametrize("name", CASES)
def test_text(name, golden):
    kernel, config, target = CASES[name]
    source = library_source(kernel, config, target, "4.2.0")
    start, end = source.text.index("namespace in_"), source.text.index("// A GEMM by CUTLASS")
    golden(f"cutlass/{name}.txt", source.text[:80] + "\n...\n" + source.text[start:end] + source.meta)
    assert source.language == LANGUAGE and LinkedMeta.parse(source.meta).text() == source.meta


def test_the_version_of_the_headers_is_part_of_the_key():
    kernel, config, target = CASES["collective_gelu"]
    one, other = (library_source(kernel, config, target, version) for version in ("4.1.0", "4.2.0"))
    assert one.key != other.key


@pytest.mark.parametrize("config", (COOPERATIVE, STREAM, Collective(64, 32, 1, 2, "ping-pong", True)))
def test_configurations_come_back(config):
    assert Collective.of(config.config) == config and is_library(config.config)


def test_tiles_come_back():
    tile = AmpereTile(64, 128, 1, 2, 128, 3)
    assert AmpereTile.of(tile.config) == tile and is_library(tile.config)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "first"),
    ((8192, 8192, 8192, 128 * 256), (64, 64, 64, 64 * 32), (13, 4096, 512, 64 * 32)),
)
def test_large_matmuls_get_large_tiles(rows, columns, depth, first):
    found = library_configs(product(rows, columns, depth), HOPPER, 4)
    assert len(found) == 4 and found[0].get("rows") * found[0].get("columns") == first


def test_sums_of_narrow_floats_are_as_accurate_as_the_kind_says():
    for kind, fast in (("dot", False), ("dot_fast", True)):
        kernel = product(512, 512, 512, dtype="f8e4m3", kind=kind)
        text = library_source(kernel, Collective(128, 128).config, HOPPER, "4.2.0").text
        assert ("FP8FastAccum" in text) is fast


def test_every_candidate_has_a_text():
    for rows, dtype, target in (
        *((700, dtype, HOPPER) for dtype in ("bf16", "f32", "i8", "f8e4m3")),
        *((13, dtype, target) for dtype in ("f16", "i8") for target in (HOPPER, AMPERE)),
    ):
        kernel = product(rows, 520, 512, dtype=dtype, out="f32")
        found = library_configs(kernel, target, 99)
        assert (
            len({library_source(kernel, config, target, "4.2.0").key for config in found}) == len(found) >= 4
        )


def test_few_rows_are_tried_both_ways_round():
    transposed = {config.get("swap") for config in library_configs(product(16, 4096, 512), HOPPER, 99)}
    assert transposed == {0, 1}
    assert {config.get("swap") for config in library_configs(product(512, 512, 512), HOPPER, 99)} == {0}


@pytest.mark.parametrize(
    ("kernel", "target", "reason"),
    (
        (product(64, 64, 63), HOPPER, "multiples of 16 bytes"),
        (product(64, 64, 63), AMPERE, "multiples of 16 bytes"),
        (product(63, 64, 64, left="rows"), AMPERE, "multiples of 16 bytes"),
        (product(64, 64, 64, dtype="f8e4m3"), AMPERE, "does not multiply f8e4m3"),
        (product(16, 16, 1 << 18, dtype="i8", out="f32"), AMPERE, "may not fit"),
    ),
)
def test_what_cannot_be_is_refused(kernel, target, reason):
    with pytest.raises(UnsupportedError, match=reason):
        library_configs(kernel, target, 4)


def test_shared_operands_are_not_offered_to_collectives():
    kernel = product(72, 136, 64, batch=5, shared=True)
    assert library_configs(kernel, HOPPER, 4) == () and library_configs(kernel, AMPERE, 4)
    with pytest.raises(UnsupportedError, match="a batch shares"):
        library_source(kernel, COOPERATIVE.config, HOPPER, "4.2.0")


# --- headers, options and the compiler ----------------------------------------------------------------------


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No headers but those that a test puts there."""
    monkeypatch.setattr(headers, "_of_wheel", list)
    monkeypatch.setattr(headers, "_SYSTEM", ())
    monkeypatch.delenv("CUTLASS_HOME", raising=False)
    headers._found.cache_clear()
    yield tmp_path
    headers._found.cache_clear()


def put(folder: Path, major: int, minor: int) -> None:
    (folder / "cutlass").mkdir(parents=True)
    lines = (f"#define CUTLASS_{name} {n}" for name, n in (("MAJOR", major), ("MINOR", minor), ("PATCH", 1)))
    (folder / "cutlass" / "version.h").write_text("\n".join(lines))


def test_headers_are_found_where_they_are_named(nowhere, monkeypatch):
    with pytest.raises(BackendUnavailableError, match="no headers of CUTLASS were found;"):
        headers.find_headers()
    put(nowhere / "include", 4, 2)
    monkeypatch.setenv("CUTLASS_HOME", str(nowhere))
    assert headers.find_headers() == headers.Headers(str(nowhere / "include"), "4.2.1")
    monkeypatch.setenv("CUTLASS_HOME", str(nowhere / "include"))
    assert headers.find_headers().folder == str(nowhere / "include")


def test_headers_of_the_wheel_and_of_the_system(nowhere, monkeypatch):
    put(nowhere / "system", 3, 8)
    monkeypatch.setattr(headers, "_SYSTEM", (str(nowhere / "system"),))
    assert headers.find_headers().version == "3.8.1"
    put(nowhere / "wheel", 4, 0)
    monkeypatch.setattr(headers, "_of_wheel", lambda: [nowhere / "wheel"])
    headers._found.cache_clear()
    assert headers.find_headers().version == "4.0.1"


def test_old_headers_are_named(nowhere, monkeypatch):
    put(nowhere / "include", 2, 11)
    monkeypatch.setenv("CUTLASS_HOME", str(nowhere))
    with pytest.raises(BackendUnavailableError, match=r"older than 3\.5"):
        headers.find_headers()
    assert "older" in findings(Settings.resolve())[-1].detail


@pytest.fixture
def nvcc(monkeypatch):
    found = toolchain.Compiler("nvcc", "/somewhere/nvcc", "13")
    monkeypatch.setattr("polyfuse_cutlass.backend.find_compiler", lambda kind: found)


def backend(target: str, collectives: object = None) -> CutlassBackend:
    options = {"cutlass.target": target}
    return CutlassBackend(
        Settings.resolve(
            None, options if collectives is None else {**options, "cutlass.collectives": collectives}
        )
    )


def test_they_are_offered_only_where_they_are_asked_for(nvcc, nowhere, monkeypatch):
    put(nowhere, 4, 2)
    monkeypatch.setenv("CUTLASS_HOME", str(nowhere))
    kernel = product(512, 512, 512)
    plain, asked = backend("sm_90"), backend("sm_90", "3")
    assert not any(is_library(config) for config in plain.configs(kernel))
    offered = asked.configs(kernel)
    assert [is_library(config) for config in offered[-4:]] == [False, True, True, True]
    assert asked.emit(kernel).language == "cuda" and asked.emit(kernel, offered[-1]).language == LANGUAGE
    assert asked.neighbours(kernel, offered[-1]) == ()
    assert asked.worker_options()["include"] == str(nowhere) and not plain.worker_options()["include"]
    assert plain.describe() == asked.describe()


def test_without_headers_the_others_remain(nvcc, nowhere):
    assert not any(is_library(config) for config in backend("sm_90", 4).configs(product(512, 512, 512)))


def test_without_nvcc_the_others_remain(monkeypatch, nowhere):
    put(nowhere, 4, 2)
    monkeypatch.setenv("CUTLASS_HOME", str(nowhere))
    found = toolchain.Compiler("nvrtc", "", "13")
    monkeypatch.setattr("polyfuse_cutlass.backend.find_compiler", lambda kind: found)
    assert backend("sm_90", 4).headers is None
    with pytest.raises(BackendUnavailableError, match="no nvcc"):
        backend("sm_80", 4)


def test_an_ampere_needs_them(nvcc, nowhere, monkeypatch):
    with pytest.raises(BackendUnavailableError, match="not wanted"):
        backend("sm_80")
    with pytest.raises(BackendUnavailableError, match="no headers"):
        backend("sm_80", 4)
    put(nowhere, 4, 2)
    monkeypatch.setenv("CUTLASS_HOME", str(nowhere))
    headers._found.cache_clear()
    made = backend("sm_80", 2)
    kernel = product(512, 512, 512)
    assert all(config.get("ampere") for config in made.configs(kernel)) and len(made.configs(kernel)) == 2
    assert made.emit(kernel).language == LANGUAGE


@pytest.mark.parametrize("value", ("many", -1))
def test_a_number_is_wanted(nvcc, value):
    with pytest.raises(InvalidOptionError, match="collectives"):
        backend("sm_90", value)


def compile_options(tmp_path: Path, name: str, script: str) -> dict[str, str]:
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"compiler": "nvcc", "path": str(program), "version": "0", "arch": "sm_90a", "include": "/headers"}


def test_what_is_built_is_listed_with_its_faults(tmp_path, nvcc):
    """By a compiler that only prints what it was called with."""
    kernel, config, target = CASES["ampere_gelu"]
    source = library_source(kernel, config, target, "4.2.0")
    said = 'echo "80 bytes stack frame, 80 bytes spill stores, 72 bytes spill loads"; echo "$@" > said'
    folder = tmp_path / "unit"
    folder.mkdir()
    build_in_worker([source, source], folder, compile_options(tmp_path, "nvcc", said))
    (artifact,) = read_unit(folder).values()
    assert artifact.key == source.key and artifact.spilled == 80 and not artifact.serial
    command = (folder / "said").read_text()
    assert all(part in command for part in ("code=sm_80", "code=compute_80", "-I/headers", "-shared"))
    assert not list(folder.glob("*.cu"))
    assert "spills 80 bytes" in backend("sm_90").review(folder, source.key).reason


def test_errors_come_with_command_and_output(tmp_path):
    kernel, config, target = CASES["ampere_gelu"]
    source = library_source(kernel, config, target, "4.2.0")
    with pytest.raises(KernelBuildError) as caught:
        build_in_worker([source], tmp_path, compile_options(tmp_path, "nvcc", "echo no such thing; exit 3"))
    assert "no such thing" in caught.value.output and str(tmp_path / "nvcc") == caught.value.command[0]
    with pytest.raises(BackendUnavailableError, match="headers of CUTLASS"):
        build_in_worker([source], tmp_path, {**compile_options(tmp_path, "nvcc", "true"), "include": ""})


@pytest.mark.parametrize(
    ("limit", "source"),
    (
        ("_SECONDS", emit(product(64, 64, 64), None, HOPPER)),
        ("_LIBRARY_SECONDS", library_source(*CASES["ampere_gelu"], "4.2.0")),
    ),
    ids=("kernel of our own", "library"),
)
def test_a_compiler_that_takes_too_long_is_ended(tmp_path, monkeypatch, limit, source):
    options = compile_options(tmp_path, "nvcc", "echo under way; sleep 1000")
    for seconds in (0.3, 3, 30, 300):  # on a busy machine, it may take any time to say something
        monkeypatch.setattr(f"polyfuse_cutlass.build.toolchain.{limit}", seconds)
        with pytest.raises(KernelBuildError, match="took longer") as caught:
            build_in_worker([source], tmp_path, options)
        assert caught.value.command[0] == options["path"]
        if caught.value.output:
            break
    assert "under way" in caught.value.output


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("name", ("collective_gelu", "ampere_gelu"))
def test_compiles_without_spills(tmp_path, name):
    """About half a minute each."""
    try:
        found = headers.find_headers()
    except BackendUnavailableError as error:
        pytest.skip(f"{CUTLASS}: {error.cause}")
    kernel, config, target = CASES[name]
    source: Source = library_source(kernel, config, target, found.version)
    compiler = toolchain.find_compiler("nvcc")
    options = {"compiler": "nvcc", "path": compiler.path, "version": compiler.version, "arch": target.name}
    build_in_worker([source], tmp_path, {**options, "include": found.folder})
    artifact = read_unit(tmp_path)[source.key]
    assert artifact.spilled == 0 and not artifact.serial
    assert (tmp_path / artifact.file).stat().st_size > 100_000
