"""The launcher's library, and a driver that it can call without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_gpu import FakeDriver


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from polyfuse_triton.launch.native import build_library, library_path  # where Triton is installed

    path = library_path(tmp_path_factory.mktemp("native"))
    build_library(path)
    return path
