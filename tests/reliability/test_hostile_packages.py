"""Packages that are damaged, or were made to do harm: each is refused with `PackageError`, quickly and in
little memory, or is as good as the whole one. The C loader reads the same files.
"""

from __future__ import annotations

import copy
import io
import json
import random
import subprocess
import sys
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch.export import export

from hostile_packages import mutated, rewritten
from native_runner import build
from polyfuse.aot import load, package
from polyfuse.aot.container import Archive
from polyfuse.aot.loading import _check_environment, describe
from polyfuse.aot.sizes import size_problem
from polyfuse.base.errors import CacheError, PackageError, PolyfuseError
from polyfuse.cache.archive import unpack
from polyfuse.cache.zip_reader import DamagedArchiveError, Limits, ZipReader

X = torch.randn(3, 8)
SEED = 31


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(SEED)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1)).eval()


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    batch = torch.export.Dim("batch", min=2, max=64)
    program = export(model, (X,), dynamic_shapes=({0: batch},))
    return package(program, path=tmp_path_factory.mktemp("packages") / "model.pf", native=True)


def check(content: bytes, path: Path, model: torch.nn.Module) -> bool:
    """Load and call a package; return whether it was refused. Wrong results and raw exceptions are errors."""
    path.write_bytes(content)
    try:
        found = load(path, verify=True)
        result = found(X)
    except PolyfuseError as error:
        assert error.cause
        return True
    torch.testing.assert_close(result, model(X))
    return False


def hostile_packages(whole: Path, model: torch.nn.Module, folder: Path, first: int, count: int) -> int:
    """Load so many packages, and return how many were refused."""
    content, path = whole.read_bytes(), folder / "hostile.pf"
    refused = 0
    for number in range(first, first + count):
        try:
            refused += check(mutated(number, content), path, model)
        except BaseException as error:
            error.add_note(f"the package of seed {number}")
            raise
    return refused


def test_hostile_packages_are_refused(whole, model, tmp_path):
    assert hostile_packages(whole, model, tmp_path, 0, 80) > 50


def test_a_device_that_does_not_exist_is_refused_wherever_it_stands(whole):
    """Seed 501061: of a weight, it reached torch, which raised RuntimeError."""
    with Archive(whole) as archive:
        sound = describe(archive)
    _check_environment(whole, sound)
    name, entry = next(iter(sound.entries.items()))
    argument = replace(entry.arguments[0], device="forward")
    for wrong in (
        replace(sound, weights=(replace(sound.weights[0], device="forward:1"), *sound.weights[1:])),
        replace(sound, entries={name: replace(entry, arguments=(argument, *entry.arguments[1:]))}),
        replace(sound, devices=("forward",)),
    ):
        with pytest.raises(PackageError, match="a device of type forward, and there is none"):
            _check_environment(whole, wrong)


@pytest.mark.slow
def test_ten_thousand_hostile_packages_are_refused(whole, model, tmp_path):
    refused = hostile_packages(whole, model, tmp_path, 1_000, 10_000)
    print(f"10000 hostile packages, seeds 1000 to 10999: {refused} refused, the others right")
    assert refused > 7_000


def test_anything_behind_the_mark_of_an_archive():
    for length in (0, 1, 3, *range(17, 400, 18)):
        data = random.randbytes(length)
        for content in (data, b"PK\3\4" + data, data + b"PK\5\6" + bytes(18)):
            with pytest.raises(DamagedArchiveError):
                ZipReader(io.BytesIO(content)).read("package.json")


@pytest.mark.slow
@seed(SEED)
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(number=st.integers(0, 1 << 60), again=st.integers(0, 1 << 60))
def test_ten_thousand_hostile_packages_of_hypothesis(number, again, whole, tmp_path_factory):
    """Changed twice; only read, not loaded, so that hypothesis may shrink."""
    from polyfuse.aot.container import Archive
    from polyfuse.aot.loading import describe

    path = tmp_path_factory.getbasetemp() / "twice.pf"
    try:
        content = mutated(again, mutated(number, whole.read_bytes()))
    except (LookupError, ValueError, OverflowError, RuntimeError, EOFError, zlib.error, zipfile.BadZipFile):
        return  # the second change found nothing to change, or nothing that Python's own reader can read
    path.write_bytes(content)
    try:
        with Archive(path) as archive:
            describe(archive)
            for name in archive.members:
                archive.verify(name)
    except PackageError as error:
        assert error.cause


def test_hostile_archives_of_the_cache_are_refused(tmp_path):
    from polyfuse.cache import KernelStore, kernel_key
    from polyfuse.cache.archive import pack
    from polyfuse.cache.artifacts import artifacts

    key, store = kernel_key("k", "toy", {}), KernelStore(tmp_path / "first")
    store.add({key: "k"}, lambda folder: (folder / "code").write_text("code") and None)
    stream = io.BytesIO()
    pack(store.root, artifacts(store.root, "kernels"), stream)
    refused = 0
    for number in range(100):
        other = KernelStore(tmp_path / str(number))
        try:
            content = mutated(number, stream.getvalue())
        except KeyError:  # what is described is a package's
            continue
        try:
            unpack(other.root, io.BytesIO(content), other.add)
        except CacheError:
            refused += 1
        found = other.find(key)
        assert found is None or (found.folder / "code").read_text() == "code", number
        inside = {path for path in tmp_path.iterdir() if path.is_dir()}
        assert all(path.name == "first" or path.name.isdigit() for path in inside)
    assert refused > 40


LIMITED = """
import resource, sys
from polyfuse.aot import load
from polyfuse.base.errors import PackageError
import torch
free = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (free + (1 << 27), -1))
for path in sys.argv[1:]:
    try:
        load(path)
    except PackageError as error:
        print(error.cause)
    else:
        raise SystemExit("it was loaded")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_bombs_are_refused_before_memory_is_had_for_them(whole, tmp_path):
    """128 MiB are all that there is, for a member of 160 and a list of many members."""
    zeros = tmp_path / "zeros.pf"
    zeros.write_bytes(rewritten(whole.read_bytes(), {"programs/forward.py": lambda _: bytes(160 << 20)}))
    crowded = tmp_path / "crowded.pf"
    with zipfile.ZipFile(crowded, "w") as archive:
        archive.writestr("m", b"")
        for number in range(69_999):
            (member := copy.copy(archive.filelist[0])).filename = f"m{number}"
            archive.filelist.append(member)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(zeros), str(crowded)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "expand" in done.stdout and "lists 70000 members" in done.stdout


def test_a_path_that_leads_elsewhere_is_refused(whole, tmp_path, monkeypatch):
    def elsewhere(content: bytes) -> bytes:
        manifest = json.loads(content)
        unit = next(iter(manifest["units"].values()))
        unit["files"] = ["../../../../outside"]
        return json.dumps(manifest).encode()

    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "model.pf"
    path.write_bytes(rewritten(whole.read_bytes(), {"package.json": elsewhere}))
    with pytest.raises(PackageError, match="lack the file"):
        load(path)
    assert not list(tmp_path.rglob("outside"))


@pytest.mark.quick(2)
@pytest.mark.parametrize("size", [[0], [7], [8, 0], []])
def test_a_weight_of_another_size_is_refused(whole, model, tmp_path, size):
    """Where the description says that there is less than kernels read."""

    def smaller(content: bytes) -> bytes:
        manifest = json.loads(content)
        manifest["weights"][1] |= {"size": size, "stride": [1] * len(size)}
        return json.dumps(manifest).encode()

    content = rewritten(whole.read_bytes(), {"package.json": smaller})
    assert check(content, tmp_path / "small.pf", model)


@pytest.mark.parametrize(
    "text",
    [
        *("().__class__", "__import__('os')", "s0.real", "[1 for x in s0]", "lambda: 1"),
        *("9**9**9", "f(1)", "'a'*9", "x[0]"),
    ],
)
def test_sizes_are_no_programs(text):
    assert size_problem(text)


def test_the_limits_of_an_archive_are_limits():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(1000))
        archive.writestr("b", b"b")
    assert ZipReader(stream).read("a") == bytes(1000)
    for limits in (Limits(members=1), Limits(directory=20), Limits(deflated=999)):
        with pytest.raises(DamagedArchiveError, match="of at most"):
            ZipReader(stream, limits)


PROGRAM = """
#include <stdlib.h>
#include "polyfuse_package.h"
int main(int count, char** paths) {
  for (int i = 1; i < count; ++i) {
    char error[512] = "";
    const pf_model_api* api = pf_open_entry(paths[i], "forward", error, sizeof error);
    pf_model* model = 0;
    if (!api) puts(error);
    else if (api->create(paths[i], &model)) puts(api->error());
    else { puts("opened"); api->destroy(model); }
  }
  return 0;
}
"""


def opened_by_c(folder: Path, paths: list[Path], flags: tuple[str, ...] = ()) -> list[str]:
    """What the C loader says of each package."""
    source = folder / "open.c"
    source.write_text(PROGRAM)
    program = build(source, folder / "open")
    command = [str(program), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, errors="replace")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_c_loader_reads_the_same_packages(whole, tmp_path):
    content = whole.read_bytes()
    paths = [whole]
    for number in range(150):
        paths.append(tmp_path / f"{number}.pf")
        paths[-1].write_bytes(mutated(number, content))
    said = opened_by_c(tmp_path, paths)
    assert len(said) == len(paths) and said[0] == "opened"
    assert any("is no package" in text for text in said)


def test_the_c_loader_finds_a_flipped_bit_in_the_library(whole, tmp_path):
    content = bytearray(whole.read_bytes())
    start = content.index(b"\x7fELF")
    paths = []
    for number in range(40):
        content[start + 100 * number] ^= 4
        paths.append(tmp_path / f"{number}.pf")
        paths[-1].write_bytes(content)
        content[start + 100 * number] ^= 4
    assert all("is damaged" in text for text in opened_by_c(tmp_path, paths))


def test_a_signed_package_is_loaded_by_whoever_trusts_the_key(model, tmp_path):
    ed25519 = pytest.importorskip(
        "cryptography.hazmat.primitives.asymmetric.ed25519", reason="signatures need the extra `signing`"
    )
    from cryptography.hazmat.primitives import serialization as s

    key, stranger = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()
    pem, public = tmp_path / "key.pem", tmp_path / "public.pem"
    pem.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))
    signed = package(export(model, (X,)), path=tmp_path / "signed.pf", sign=pem)
    plain = package(export(model, (X,)), path=tmp_path / "plain.pf")
    for trusted in (public, key.public_key(), key.public_key().public_bytes_raw()):
        torch.testing.assert_close(load(signed, trust=[stranger.public_key(), trusted])(X), model(X))
    torch.testing.assert_close(load(signed)(X), model(X))
    for path, trust, words in (
        (signed, [stranger.public_key()], "not signed by any of the 1 keys"),
        (signed, [], "not signed by any of the 0 keys"),
        (plain, [public], "is not signed"),
        (signed, [b"short"], "got no public key"),
        (signed, [key], "got a"),
    ):
        with pytest.raises(PackageError, match=words):
            load(path, trust=trust)
    with pytest.raises(PackageError, match="got no private key"):
        package(export(model, (X,)), path=tmp_path / "x.pf", sign=tmp_path / "none.pem")


def test_nothing_of_a_package_runs_before_its_signature_is_checked(model, tmp_path):
    ed25519 = pytest.importorskip(
        "cryptography.hazmat.primitives.asymmetric.ed25519", reason="signatures need the extra `signing`"
    )
    key = ed25519.Ed25519PrivateKey.generate()
    signed = package(export(model, (X,)), path=tmp_path / "signed.pf", sign=key, modules=("colorsys",))
    content = signed.read_bytes()
    refused = 0
    for number in range(80):
        other = tmp_path / "other.pf"
        changed = mutated(number, content)
        if changed == content:
            continue
        other.write_bytes(changed)
        try:
            torch.testing.assert_close(load(other, trust=[key.public_key()])(X), model(X))
        except PackageError:
            refused += 1
    assert refused >= 70
    sys.modules.pop("colorsys", None)
    stranger = ed25519.Ed25519PrivateKey.generate()
    with pytest.raises(PackageError, match="not signed by"):
        load(signed, trust=[stranger.public_key()])
    assert "colorsys" not in sys.modules
