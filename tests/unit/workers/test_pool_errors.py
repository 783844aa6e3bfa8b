"""What the pool does when the store or a backend's files fail it."""

from __future__ import annotations

import threading
from pathlib import Path

from polyfuse.base.errors import CacheError, KernelBuildError, KernelLoadError
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore
from polyfuse.workers import BuildPool
from toy_backend import ToyBackend, source

SETTINGS = Settings(build_workers=2, build_timeout=300)


def outcome(backend: ToyBackend, store: KernelStore, text: str = "text") -> object:
    """What became of one kernel."""
    item = source(text)
    with BuildPool(SETTINGS) as pool:
        return pool.submit(backend, [item], store).outcomes()[item.key]


def test_a_backend_that_cannot_describe_itself_builds_nothing(tmp_path: Path) -> None:
    class Speechless(ToyBackend):
        def describe(self):
            raise OSError("no version")

        def build(self, sources, folder):
            raise AssertionError

    error = outcome(Speechless(SETTINGS), KernelStore(tmp_path))
    assert isinstance(error, KernelBuildError) and "`describe` (OSError: no version)" in str(error)


def test_a_unit_without_its_kernel_is_built_again_and_then_given_up(tmp_path: Path) -> None:
    class Forgetful(ToyBackend):
        def load(self, folder):
            self.loads += 1
            return {}

    backend = Forgetful(SETTINGS)
    error = outcome(backend, KernelStore(tmp_path))
    assert isinstance(error, KernelLoadError) and "lacks kernel" in str(error)
    assert backend.loads == 3, "found, built again, and built in another folder"


def test_a_second_build_that_fails_says_why(tmp_path: Path) -> None:
    class Once(ToyBackend):
        builds = 0

        def build(self, sources, folder):
            self.builds += 1
            if self.builds > 1:
                raise KernelBuildError("the disk is full", "free space")
            super().build(sources, folder)

        def load(self, folder):
            raise OSError("damaged")

    error = outcome(Once(SETTINGS), KernelStore(tmp_path))
    assert isinstance(error, KernelBuildError) and "the disk is full" in str(error)


def test_a_lock_that_others_hold_too_long_costs_no_kernel(tmp_path: Path, warnings_seen) -> None:
    """The one who waits builds in a folder of his own; the artefact of the other is left alone."""
    entered, leave = threading.Event(), threading.Event()

    class Slow(ToyBackend):
        def build(self, sources, folder):
            entered.set()
            leave.wait(300)
            super().build(sources, folder)

    item = source("text")
    with BuildPool(SETTINGS) as first, BuildPool(SETTINGS) as second:
        slow = first.submit(Slow(SETTINGS), [item], KernelStore(tmp_path))
        assert entered.wait(300)
        try:
            impatient = KernelStore(tmp_path, lock_timeout=0.1)
            said: list[str] = []
            second.submit(ToyBackend(SETTINGS), [item], impatient).result()[item.key](said)
        finally:
            leave.set()
        assert said == ["text"]
        slow.result()
    (warning,) = warnings_seen()
    assert "temporary" in warning and str(tmp_path) in warning


def test_without_any_folder_the_error_says_what_to_do(tmp_path: Path, monkeypatch) -> None:
    root = tmp_path / "file"
    root.touch()
    monkeypatch.setattr(KernelStore, "temporary", staticmethod(lambda: KernelStore(root)))
    error = outcome(ToyBackend(SETTINGS), KernelStore(root))
    assert isinstance(error, CacheError) and "set `cache_dir`" in str(error)


def test_surprises_of_the_store_are_errors_of_the_kernel(tmp_path: Path, monkeypatch) -> None:
    def fail(*_):
        raise ValueError("odd")

    monkeypatch.setattr(KernelStore, "add", fail)
    error = outcome(ToyBackend(SETTINGS), KernelStore(tmp_path))
    assert isinstance(error, KernelBuildError) and "stored (ValueError: odd)" in str(error)
