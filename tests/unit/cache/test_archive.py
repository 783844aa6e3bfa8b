"""Archives of artifacts: what is taken along, what is refused, and that nothing lands elsewhere."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from polyfuse.base.errors import CacheError
from polyfuse.cache import KernelStore, kernel_key
from polyfuse.cache.archive import Unpacked, pack, unpack
from polyfuse.cache.artifacts import CONTENTS, KINDS, artifacts
from toy_backend import source

SECRET = b"a secret of these machines"
ONE, TWO = kernel_key(source("a").key, "toy", {}), kernel_key(source("b").key, "toy", {})


def build(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "code").write_bytes(b"code")
    (folder / "empty").touch()


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "first"
    KernelStore(root).add({ONE: "s1", TWO: "s2"}, build)
    for name in (
        "compiled/graph/entry",
        "compiled/graph/other",
        "timings/ab/abc.json",
        "samples/group/x-0.json",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def packed(root: Path) -> bytes:
    stream = io.BytesIO()
    pack(root, [item for kind in KINDS for item in artifacts(root, kind)], stream, SECRET)
    return stream.getvalue()


def added(root: Path, content: bytes, secret: bytes | None = SECRET) -> Unpacked:
    return unpack(root, io.BytesIO(content), KernelStore(root).add, secret)


def changed(content: bytes, names: dict[str, str | None], data: bytes | None = None) -> bytes:
    """An archive with members renamed, left out (None), or filled with something else."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(stream, "w") as after:
        for name in before.namelist():
            for old, new in names.items():
                if old in name:
                    if new is not None:
                        after.writestr(name.replace(old, new), before.read(name) if data is None else data)
                    break
            else:
                after.writestr(name, before.read(name))
    return stream.getvalue()


def files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.parent.name != "locks"
    }


def test_everything_is_taken_along(root, tmp_path):
    content = packed(root)
    assert content == packed(root), "equal artifacts make equal archives"
    second = tmp_path / "second"
    assert added(second, content) == Unpacked(added=4)
    assert files(second) == files(root)
    location = KernelStore(second).find(TWO)
    assert location is not None and location.source_key == "s2"
    assert added(second, content) == Unpacked(present=4)
    (second / "compiled" / "graph" / "other").unlink()
    assert added(second, content) == Unpacked(added=1, present=3)


def test_what_is_there_is_left_alone(root, tmp_path):
    second = tmp_path / "second"
    (second / "timings" / "ab").mkdir(parents=True)
    (second / "timings" / "ab" / "abc.json").write_text("mine")
    assert added(second, packed(root)) == Unpacked(added=3, present=1)
    assert (second / "timings" / "ab" / "abc.json").read_text() == "mine"


@pytest.mark.parametrize("cut", [0, 10, 200, -30])
def test_an_archive_cut_short_is_refused(root, tmp_path, cut):
    with pytest.raises(CacheError, match="damaged"):
        added(tmp_path / "second", packed(root)[:cut])
    assert not (tmp_path / "second").exists()


def test_no_flipped_bit_goes_unseen(root, tmp_path):
    content = packed(root)
    for position in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[position] ^= 0x55
        second = tmp_path / str(position)
        try:
            added(second, bytes(flipped), None)
        except CacheError:
            continue
        assert files(second).items() <= files(root).items()


def test_a_flipped_bit_costs_its_artifact_alone(root, tmp_path):
    content = bytearray(changed(packed(root), {}))
    content[content.index(b"timings/ab/abc.jsontimings") + 25] ^= 1
    second = tmp_path / "second"
    assert added(second, bytes(content), None) == Unpacked(added=2, damaged=1, refused=1)
    assert not (second / "timings").exists() and KernelStore(second).find(ONE) is not None
    with pytest.raises(CacheError, match="damaged"):
        added(second, bytes(content))


def test_compiled_graphs_need_the_secret_of_who_made_them(root, tmp_path):
    content = packed(root)
    assert added(tmp_path / "second", content, None) == Unpacked(added=3, refused=1)
    assert not (tmp_path / "second" / "compiled").exists()
    with pytest.raises(CacheError, match="is not sealed with the secret"):
        added(tmp_path / "third", content, b"another secret of machines")
    with pytest.raises(CacheError, match="is not sealed with the secret"):
        added(tmp_path / "third", changed(content, {"graph/other": "graph/mine"}))
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize(
    ("names", "data"),
    [({"sub/code": None}, None), ({"sub/code": "sub/code"}, b"longer"), ({CONTENTS: None}, None)],
)
def test_a_unit_that_is_not_whole_is_refused(root, tmp_path, names, data):
    second = tmp_path / "second"
    assert added(second, changed(packed(root), names, data), None) == Unpacked(added=2, damaged=1, refused=1)
    assert KernelStore(second).find(ONE) is None


def test_a_unit_under_another_name_is_refused(root, tmp_path):
    (unit,) = artifacts(root, "kernels")
    content = changed(packed(root), {unit.path.name: unit.path.name[::-1]})
    assert added(tmp_path / "second", content, None).damaged == 1


@pytest.mark.parametrize("name", ["../graph", ".graph", "/graph", "a:b", "", "a\\b"])
@pytest.mark.parametrize("member", ["graph", "kernels/"])
def test_names_that_lead_elsewhere_are_refused(root, tmp_path, name, member):
    content = changed(packed(root), {member: name if member == "graph" else f"{name}/{member}"})
    with pytest.raises(CacheError, match="no archive"):
        added(tmp_path / "second" / "root", content, None)
    assert [p for p in tmp_path.rglob("*") if p.is_file() and root not in p.parents] == []


def test_another_format_is_refused(root, tmp_path, monkeypatch):
    content = packed(root)
    monkeypatch.setattr("polyfuse.cache.archive.STORE_FORMAT", 999)
    with pytest.raises(CacheError, match="another format"):
        added(tmp_path / "second", content)


def test_units_that_do_not_say_what_is_in_them_stay(root, tmp_path):
    (unit,) = artifacts(root, "kernels")
    (unit.path / CONTENTS).write_text('{"files": {}}')
    assert added(tmp_path / "second", packed(root)) == Unpacked(added=3)
