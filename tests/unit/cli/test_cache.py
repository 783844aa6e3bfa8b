from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyfuse import cli
from polyfuse.cache import KernelStore, kernel_key
from toy_backend import source


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    key = kernel_key(source("a").key, "toy", {})
    KernelStore(tmp_path).add({key: "s"}, lambda folder: write(folder / "code"))
    write(tmp_path / "compiled" / "graph" / "entry")
    write(tmp_path / "timings" / "ab" / "abc.json")
    return tmp_path


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(2 << 20))


def counts(capsys) -> list[int]:
    capsys.readouterr()
    assert cli.main(["cache", "info", "--json"]) == 0
    kinds = json.loads(capsys.readouterr().out)["kinds"]
    return [kinds[kind]["count"] for kind in ("kernels", "compiled", "timings", "samples")]


def test_info(root, capsys):
    assert counts(capsys) == [1, 1, 1, 0]
    assert cli.main(["cache", "info"]) == 0
    out = capsys.readouterr().out
    assert "just now" in out and "  0 samples of timings\n" in out
    assert "1 units of kernels, 2.0 MiB" in out and "1 compiled graphs, 2.0 MiB" in out and str(root) in out


def test_clear(root, capsys):
    assert cli.main(["cache", "clear", "--kind", "compiled"]) == 0
    assert "1 compiled graphs removed" in capsys.readouterr().out
    assert counts(capsys) == [1, 0, 1, 0]
    assert cli.main(["cache", "clear"]) == 0
    assert counts(capsys) == [0, 0, 1, 0], "timings stay unless they are named"
    assert cli.main(["cache", "clear", "--kind", "timings"]) == 0
    assert counts(capsys) == [0, 0, 0, 0]


def test_trim(root, capsys, monkeypatch):
    assert cli.main(["cache", "trim"]) == 0
    assert capsys.readouterr().out.startswith("0 removed")
    monkeypatch.setenv("POLYFUSE_CACHE_LIMIT", "0")
    assert cli.main(["cache", "trim"]) == 0
    assert counts(capsys) == [1, 1, 1, 0], "without a limit nothing goes"
    assert cli.main(["cache", "trim", "--limit", "3"]) == 0
    assert counts(capsys)[:2] in ([0, 1], [1, 0])


def test_what_is_saved_can_be_loaded_elsewhere(root, capsys, monkeypatch, tmp_path):
    file, secret = tmp_path / "bundle", tmp_path / "secret"
    secret.write_text("a secret of these machines")
    assert cli.main(["cache", "export", str(file)]) == 0
    assert "2 artifacts written" in capsys.readouterr().out, "without a secret, no compiled graphs"
    monkeypatch.setenv("POLYFUSE_REMOTE_KEY", str(secret))
    assert cli.main(["cache", "export", str(file)]) == 0
    assert "3 artifacts written" in capsys.readouterr().out
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert cli.main(["cache", "import", str(file)]) == 0
    assert "3 artifacts added, 0 were there" in capsys.readouterr().out
    assert counts(capsys) == [1, 1, 1, 0]
    assert cli.main(["cache", "export", "--kind", "compiled", str(file)]) == 0
    assert "1 artifacts written" in capsys.readouterr().out
    file.write_bytes(file.read_bytes()[:-9])
    assert cli.main(["cache", "import", str(file)]) == 1
    assert "damaged" in capsys.readouterr().err
    assert cli.main(["cache", "import", str(tmp_path / "none")]) == 1
    assert "cannot be added" in capsys.readouterr().err
