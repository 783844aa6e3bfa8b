"""Processes that take times on one device take turns."""

from __future__ import annotations

import logging
import multiprocessing
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyfuse.select import alone
from polyfuse.select.alone import alone_on


def _hold(folder: Path, seconds: float, entered: Any) -> None:
    with alone_on("cpu", folder):
        entered.set()
        time.sleep(seconds)
        (folder / "left").touch()


def test_others_wait(tmp_path):
    context = multiprocessing.get_context("spawn")
    entered = context.Event()
    other = context.Process(target=_hold, args=(tmp_path, 1.0, entered))
    other.start()
    assert entered.wait(60)
    with alone_on("cpu", tmp_path):
        assert (tmp_path / "left").exists()
    other.join()


@pytest.fixture
def devices(monkeypatch):
    """Two devices, numbered as this process sees them."""
    names = {"gpu:0": "first", "gpu:1": "second"}
    module = SimpleNamespace(get_device_properties=lambda device: SimpleNamespace(uuid=names[device]))
    monkeypatch.setattr(alone.torch, "get_device_module", lambda device: module)


def test_other_devices_do_not_wait(tmp_path, devices, caplog):
    with caplog.at_level(logging.INFO, logger="polyfuse"), alone_on("gpu:0", tmp_path):
        with alone_on("gpu:1", tmp_path, seconds=0), alone_on("cpu", tmp_path, seconds=0):
            pass
        assert not caplog.messages
        with alone_on("gpu:0", tmp_path, seconds=0):
            pass
    assert len(caplog.messages) == 1 and "gpu:0" in caplog.messages[0]


def test_without_a_folder_times_are_taken(tmp_path):
    file = tmp_path / "file"
    file.touch()
    entered = False
    with alone_on("cpu", file):
        entered = True
    assert entered
