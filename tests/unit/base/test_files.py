from __future__ import annotations

import os

import pytest

from polyfuse.base.files import atomic_write, publish_folder, read_text, scratch_folder


def test_write_makes_parents_and_leaves_no_temporary(tmp_path):
    path = atomic_write(tmp_path / "a" / "b.txt", "naïve\n")
    assert path.read_bytes() == "naïve\n".encode()
    assert os.listdir(path.parent) == ["b.txt"]


def test_failure_keeps_the_old_file(tmp_path, monkeypatch):
    path = atomic_write(tmp_path / "f", b"old")

    def fail(*_):
        raise OSError("no")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_keep_equal_leaves_the_time_stamp(tmp_path):
    path = atomic_write(tmp_path / "f", "same")
    os.utime(path, (1, 1))
    atomic_write(path, "same", keep_equal=True)
    assert path.stat().st_mtime == 1
    atomic_write(path, "other", keep_equal=True)
    assert path.stat().st_mtime != 1


def test_permissions_follow_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        path = atomic_write(tmp_path / "f", "x")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640


def test_read_text_of_nothing(tmp_path):
    assert read_text(tmp_path / "missing") is None
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    assert read_text(tmp_path / "bytes") is None


def test_scratch_folder_is_removed_unless_published(tmp_path):
    final = tmp_path / "final"
    with scratch_folder(final) as scratch:
        (scratch / "f").touch()
        assert publish_folder(scratch, final)
    assert os.listdir(tmp_path) == ["final"]
    with scratch_folder(final) as scratch:
        (scratch / "g").touch()
        assert not publish_folder(scratch, final)
    assert os.listdir(final) == ["f"]
    with pytest.raises(RuntimeError), scratch_folder(final):
        raise RuntimeError
    assert os.listdir(tmp_path) == ["final"]
