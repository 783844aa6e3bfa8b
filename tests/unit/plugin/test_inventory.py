"""The code of plugins in the keys of what they build."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import pytest

from fake_plugins import plugin
from polyfuse.base import code
from polyfuse.base.settings import Settings
from polyfuse.plugin import PluginManager
from polyfuse.plugin.session.inventory import code_of
from polyfuse.workers import BuildPool
from toy_backend import source

PACKAGE = "editable_plugin_of_a_test"
BACKEND = "from toy_backend import ToyBackend\n\n\nclass Edited(ToyBackend):\n    level = {}\n"


def write(path: Path, level: int, age: float) -> None:
    """A backend's file that was changed that many seconds before this process began."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(BACKEND.format(level))
    os.utime(path, (code._BEGUN - age,) * 2)


@pytest.fixture
def key(monkeypatch, tmp_path):
    """Answers the key that a new process would give to what an installed plugin builds from one source."""
    monkeypatch.syspath_prepend(tmp_path)
    point = plugin(monkeypatch, load=f"{PACKAGE}.backend:Edited")

    def compute(name: str = "toy") -> str:
        for module in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            monkeypatch.delitem(sys.modules, module)
        code.code_stamp.cache_clear()
        code.code_digest.cache_clear()
        plugins = PluginManager(Settings(), [point])
        digest = partial(code.code_digest, memory=tmp_path / "memory")
        with BuildPool(Settings(), (), lambda backend: code_of(plugins, backend, digest)) as pool:
            return pool.address(plugins.backend(name), source("text"))

    # what declares the plugin has no files here
    monkeypatch.setattr(PluginManager, "module", lambda *_: PACKAGE)
    yield compute
    code.code_stamp.cache_clear()
    code.code_digest.cache_clear()


def test_editing_a_file_of_an_editable_plugin_gives_a_new_key(key, tmp_path):
    path = tmp_path / PACKAGE / "backend.py"
    write(path, level=1, age=5000)
    first = key()
    write(path, level=1, age=4000)
    assert key() == first, "the same code"
    write(path, level=2, age=3000)
    second = key()
    assert second != first
    write(path, level=1, age=2000)
    assert key() == first


def test_files_newer_than_the_process_give_a_key_that_no_other_process_has(key, tmp_path, monkeypatch):
    path = tmp_path / PACKAGE / "backend.py"
    write(path, level=1, age=5000)
    known = key()
    write(path, level=1, age=-1000)
    unknown = key()
    assert unknown != known and unknown == key()
    monkeypatch.setattr("polyfuse.plugin.session.inventory._THIS_PROCESS", "another")
    assert key() not in (known, unknown)
