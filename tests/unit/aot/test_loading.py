"""Packages that cannot be used say why; weights are mapped, shared and replaced."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch.export import export

import preforked
from packaged_models import exported, mixed
from polyfuse.aot import load, loading, package
from polyfuse.aot.container import ALIGNMENT, Archive
from polyfuse.base.errors import (
    InvalidOptionError,
    KernelLaunchError,
    KernelLoadError,
    PackageError,
    PolyfuseError,
    mark_from_model,
)
from polyfuse.checking import tally


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return package(exported(mixed()), path=tmp_path_factory.mktemp("packages") / "mixed.pf")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    torch.manual_seed(5)
    model = torch.nn.Linear(1024, 640, bias=False).eval()
    target = tmp_path_factory.mktemp("packages") / "large.pf"
    return model, package(export(model, (torch.randn(3, 1024),)), path=target)


def changed(path, target, change):
    """A copy of a package with another description."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename == "package.json":
                manifest = json.loads(content)
                change(manifest)
                content = json.dumps(manifest).encode()
            new.writestr(info, content)
    return target


def set_in(*keys, to):
    def change(manifest):
        for key in keys[:-1]:
            manifest = manifest[key]
        manifest[keys[-1]] = to

    return change


UNFIT = {
    "a later format": (set_in("format", to=[2, 0]), r"has format 2\.0 of packages where this version"),
    "another machine": (set_in("machine", to="z80"), "was made for .* on z80, and this is"),
    "a later torch": (set_in("versions", "torch", to="2.99.1"), "was made with torch 2.99.1"),
    "a later major version of torch": (set_in("versions", "torch", to="3.0"), "install torch 3.0"),
    "a device": (set_in("devices", to=["cpu", "xpu"]), "device of type xpu, and there is none"),
    "a module": (set_in("modules", to=["no_such_module"]), "no_such_module, which cannot be imported"),
    "an operator": (
        set_in("entries", "forward", "operators", to=["nowhere.twice.default"]),
        "nowhere.twice.default, which is not registered",
    ),
    "a loader": (set_in("backends", "cpp", "loader", to="nowhere.loading:load"), "install polyfuse 0"),
    "no description": (set_in("entries", to=[]), "the description of the package"),
    "no mark": (set_in("what", to="something else"), "is no package"),
}


@pytest.mark.quick(5)
@pytest.mark.skipif(torch.xpu.is_available(), reason="this machine has the device that the test lacks")
@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_refused(path, tmp_path, case):
    change, words = UNFIT[case]
    with pytest.raises(PackageError, match=words) as caught:
        load(changed(path, tmp_path / "other.pf", change))
    assert caught.value.fix


def test_what_the_compiler_took_to_be_true_of_sizes_is_checked(path, tmp_path):
    with Archive(path) as archive:
        (name,) = archive.manifest["entries"]["forward"]["symbols"]
    for condition, right, wrong in (
        (f"Eq(Mod({name}, 4), 0)", 8, 6),
        (f"And({name} >= 5, Ne(({name}//2), 4))", 7, 9),
    ):
        change = set_in("entries", "forward", "conditions", to=[condition])
        found = load(changed(path, tmp_path / "other.pf", change))
        x = torch.randn(right, 8)
        torch.testing.assert_close(found(x, torch.ones(6))["z"], mixed()(x, torch.ones(6))["z"])
        with pytest.raises(PackageError, match=f"and {name} = {wrong}"):
            found(torch.randn(wrong, 8), torch.ones(6))


def test_a_processor_that_lacks_instructions_is_refused(path, tmp_path):
    lacking = set_in("backends", "cpp", "facts", "isa", to="avx4096")
    with pytest.raises(KernelLoadError, match="this one lacks avx4096"):
        load(changed(path, tmp_path / "other.pf", lacking))


def test_a_damaged_file_is_refused(path, tmp_path):
    with pytest.raises(PackageError, match="there is no file"):
        load(tmp_path / "none.pf")
    content = path.read_bytes()
    for size in (0, 100, len(content) // 2, len(content) - 30):
        (tmp_path / "cut.pf").write_bytes(content[:size])
        with pytest.raises(PackageError, match="is no package, or is damaged"):
            load(tmp_path / "cut.pf")


@pytest.mark.parametrize("member", ["programs/forward.py", "kernels.so", "weights.bin"])
def test_a_member_that_was_changed_is_refused(path, tmp_path, member, monkeypatch):
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    target = tmp_path / "changed.pf"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            content = bytearray(old.read(info))
            if info.filename.endswith(member):
                content[len(content) // 2] ^= 1
            new.writestr(info, bytes(content))
    with pytest.raises(PackageError, match=f"{member} in the package .* is damaged"):
        load(target, verify=True)


def test_damaged_kernels_in_the_cache_are_written_again(path, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    # by another process: a library that this one has in use cannot be damaged
    assert not preforked.run(f"from polyfuse.aot import load; load({str(path)!r})").returncode
    libraries = list((tmp_path / "cache").rglob("kernels.so"))
    assert libraries
    for library in libraries:
        library.write_bytes(bytes(library.stat().st_size))  # of the same size
    x = torch.randn(3, 8)
    torch.testing.assert_close(load(path)(x, torch.ones(6))["z"], mixed()(x, torch.ones(6))["z"])


def test_a_cache_that_cannot_be_written_is_done_without(path, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "file"))
    x = torch.randn(3, 8)
    torch.testing.assert_close(load(path)(x, torch.ones(6))["z"], mixed()(x, torch.ones(6))["z"])


def test_backends_without_a_loader_load_themselves(tmp_path):
    model, x = torch.nn.Softplus(), torch.randn(5)
    target = package(export(model, (x,)), path=tmp_path / "i.pf", options={"backends": ["interpreter"]})
    assert load(target).description.backends["interpreter"].loader == ""
    torch.testing.assert_close(load(target)(x), model(x))


@pytest.mark.parametrize("text", ["raise {}(3)", "def load(folder, facts):\n    raise {}(3)"])
@pytest.mark.parametrize("kind", ["ValueError", "SystemExit"])
def test_a_loader_that_raises_or_exits_is_named(path, tmp_path, monkeypatch, text, kind):
    (tmp_path / "mine_loading.py").write_text(text.format(kind))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_loading", raising=False)
    other = changed(path, tmp_path / "other.pf", set_in("backends", "cpp", "loader", to="mine_loading:load"))
    with pytest.raises(PolyfuseError, match=rf"'cpp'.*{kind}: 3"):
        load(other)


def test_weights_are_aligned_in_the_file_and_in_memory(path, large):
    for file in (path, large[1]):
        with Archive(file) as archive:
            assert archive.offset_of("weights.bin") % ALIGNMENT == 0
        found = load(file)
        assert all(row.offset % ALIGNMENT == 0 for row in found.description.weights)
        assert all(t.data_ptr() % ALIGNMENT == 0 for t in found.constants.values())


def test_members_of_many_bytes_are_aligned_too(tmp_path, monkeypatch):
    monkeypatch.setattr("polyfuse.aot.container._LARGE", 1)
    model = torch.nn.Linear(3, 5)
    path = package(export(model, (torch.randn(2, 3),)), path=tmp_path / "large.pf")
    with Archive(path) as archive:
        assert archive.offset_of("weights.bin") % ALIGNMENT == 0
    x = torch.randn(2, 3)
    torch.testing.assert_close(load(path, verify=True)(x), model(x))


def test_large_weights_are_mapped_and_shared(large, tmp_path):
    model, path = large
    first, second = load(path), load(path)
    other = load(shutil.copy(path, tmp_path / "again.pf"))
    address = first.constants["weight"].data_ptr()
    assert second.constants["weight"].data_ptr() == address
    assert other.constants["weight"].data_ptr() != address, "what a file says of itself proves nothing"
    if platform.system() == "Linux":
        with open("/proc/self/maps") as maps:
            ranges = [line.split() for line in maps if line.rstrip().endswith(str(path))]
        assert any(int(r[0].split("-")[0], 16) <= address < int(r[0].split("-")[1], 16) for r in ranges), (
            "the weights are not part of the file's mapping"
        )
    x = torch.randn(3, 1024)
    torch.testing.assert_close(first(x), model(x))
    before = path.read_bytes()
    first.constants["weight"].zero_()
    assert path.read_bytes() == before, "writing to a mapped weight changed the file"
    del first, second
    torch.testing.assert_close(load(path)(x), model(x))


def test_weights_are_replaced_by_name(path):
    found, other = load(path), mixed(seed=9)
    x = torch.randn(3, 8)
    with torch.no_grad():
        found.load_constants(dict(other.named_parameters()))
        torch.testing.assert_close(found(x, torch.ones(6))["z"], other(x, torch.ones(6))["z"])
        other.linear.weight.mul_(2)  # it is used where it is
        torch.testing.assert_close(found(x, torch.ones(6))["z"], other(x, torch.ones(6))["z"])
    torch.testing.assert_close(load(path)(x, torch.ones(6))["z"], mixed()(x, torch.ones(6))["z"])


def test_replaced_weights_of_other_layouts_are_copied(path):
    found, other = load(path), mixed(seed=9)
    given = dict(other.state_dict())
    given["linear.weight"] = given["linear.weight"].t().contiguous().t()
    room = torch.empty(17)
    given["norm.weight"] = room[1:].copy_(given["norm.weight"])  # not aligned
    found.load_constants(given, strict=True)
    x = torch.randn(3, 8)
    torch.testing.assert_close(found(x, torch.ones(6))["z"], other(x, torch.ones(6))["z"])
    assert given["calls"] == other.calls, "the program wrote to a tensor of the caller's"


def test_wrong_weights_are_refused(path):
    found = load(path)
    before = found.constants
    for given, words in (
        ({"linear.weights": torch.ones(1)}, "no weight 'linear.weights'"),
        ({"linear.bias": torch.ones(3)}, "of size \\(3,\\) where torch.float32 of size \\(16,\\)"),
        ({"linear.bias": torch.ones(16).double()}, "is torch.float64"),
        ({"linear.bias": [1.0]}, "is a list"),
    ):
        with pytest.raises(PackageError, match=words):
            found.load_constants(given)
    with pytest.raises(PackageError, match="4 weights are missing"):
        found.load_constants({"linear.bias": torch.ones(16)}, strict=True)
    assert all(found.constants[name] is tensor for name, tensor in before.items())


def test_a_package_without_weights(tmp_path):
    model = mixed()
    path = package(exported(model), path=tmp_path / "bare.pf", weights=False)
    assert not Archive(path).manifest["weight_member"]
    with pytest.raises(PackageError, match="was made without 5 of its weights"):
        load(path)
    x = torch.randn(3, 8)
    found = load(path, constants=model.state_dict())
    torch.testing.assert_close(found(x, torch.ones(6))["z"], model(x, torch.ones(6))["z"])


def test_weights_given_at_load_replace_those_in_the_file(path):
    other = mixed(seed=3)
    found = load(path, constants={"linear.bias": other.linear.bias})
    model, x = mixed(), torch.randn(3, 8)
    with torch.no_grad():
        model.linear.bias.copy_(other.linear.bias)
    torch.testing.assert_close(found(x, torch.ones(6))["z"], model(x, torch.ones(6))["z"])


def test_operators_of_other_libraries(tmp_path):
    calls = []

    @torch.library.custom_op("polyfuse_packaged::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2

    @twice.register_fake
    def _(x):
        return torch.empty_like(x)

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.ops.polyfuse_packaged.twice(x + 1) * 3

    program = export(Model(), (torch.randn(4),))
    with pytest.raises(PackageError, match="which is no part of torch"):
        package(program, path=tmp_path / "refused.pf")
    found = load(package(program, path=tmp_path / "custom.pf", modules=("colorsys",)))
    assert found.description.modules == ("colorsys",)
    calls.clear()
    x = torch.randn(4)
    torch.testing.assert_close(found(x), (x + 1) * 6)
    assert calls == [1]


def test_a_program_that_needs_a_later_runtime_says_so(path, monkeypatch):
    def fails(*_):
        raise ImportError("cannot import name 'later'")

    monkeypatch.setattr(loading, "load_program", fails)
    with pytest.raises(PackageError, match=r"was made by Polyfuse .* and this is"):
        load(path)


def launched_by(monkeypatch, wrap):
    """Let `wrap` answer for each kernel of packages that are loaded."""
    real = loading._loader

    def loader(*args):
        read = real(*args)
        return lambda folder: {key: wrap(kernel) for key, kernel in read(folder).items()}

    monkeypatch.setattr(loading, "_loader", loader)


def refusing(kernel):
    def launch(*operands):
        raise RuntimeError("no kernel image is available")

    return launch


@pytest.mark.parametrize("check", ["off", "first"])
def test_a_launch_that_raises_names_kernel_and_package(path, monkeypatch, check):
    launched_by(monkeypatch, refusing)
    with pytest.raises(KernelLaunchError) as caught:
        load(path, check=check)(torch.randn(3, 8), torch.ones(6))
    words = str(caught.value)
    assert str(path) in words and "generated by 'cpp'" in words and "no kernel image" in words
    assert "make it again" in words and isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), mark_from_model(IndexError("9"))])
def test_what_is_no_fault_of_a_package_passes_through(path, monkeypatch, error):
    def interrupted(kernel):
        def launch(*operands):
            raise error

        return launch

    launched_by(monkeypatch, interrupted)
    with pytest.raises(type(error)) as caught:
        load(path)(torch.randn(3, 8), torch.ones(6))
    assert caught.value is error


@pytest.fixture
def counted(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    tally.begin(forget=False)


def test_the_first_launches_of_a_package_are_checked(path, counted):
    x, y = torch.randn(3, 8), torch.ones(6)
    wanted = mixed()(x, y.clone())["z"]
    torch.testing.assert_close(load(path, check="first")(x, y.clone())["z"], wanted)
    first = tally.result()
    assert first.launches and not first.findings and not first.skipped
    load(path, check="first")(x, y.clone())
    assert tally.result().launches == first.launches  # agreement is remembered on disk
    load(path, check="all")(x, y.clone())
    assert tally.result().launches == 2 * first.launches
    with pytest.raises(InvalidOptionError, match="check"):
        load(path, check="some")


def test_a_kernel_of_a_package_that_differs_is_replaced(path, counted, monkeypatch, warnings_seen):
    def nudged(kernel):
        def launch(*operands):
            kernel(*operands)
            next(o for o in reversed(operands) if isinstance(o, torch.Tensor)).view(-1)[:1] += 1

        return launch

    launched_by(monkeypatch, nudged)
    x, y = torch.randn(3, 8), torch.ones(6)
    found = load(path, check="first")
    for _ in range(2):
        torch.testing.assert_close(found(x, y.clone())["z"], mixed()(x, y.clone())["z"])
    (finding, *_) = tally.result().findings
    assert finding.backend == "cpp" and finding.operators and Path(finding.repro).is_file()
    assert any(str(path) in text and "differs from the interpreter" in text for text in warnings_seen())
