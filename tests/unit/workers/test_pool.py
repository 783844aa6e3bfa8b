from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from polyfuse.base.errors import KernelBuildError, KernelLoadError
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore
from polyfuse.plugin import Launchable
from polyfuse.workers import BuildPool
from polyfuse.workers.chunks import MAX_UNIT, MIN_UNIT, divide
from toy_backend import ProcessBackend, ToyBackend, source

SETTINGS = Settings(build_workers=2, build_timeout=30)


@pytest.fixture(params=[ToyBackend, ProcessBackend])
def kind(request):
    return request.param


def launch(kernel: Launchable) -> str:
    said: list[str] = []
    kernel(said)
    return said[0]


def built(count: Path) -> int:
    return len(count.read_text().split()) if count.exists() else 0


def test_builds_loads_and_remembers(kind, tmp_path):
    store, count = KernelStore(tmp_path / "store"), tmp_path / "count"
    sources = [source(f"text {i}") for i in range(5)]
    with BuildPool(SETTINGS) as pool:
        backend = kind(SETTINGS, count)
        future = pool.submit(backend, [*sources, sources[0]], store)
        assert future.keys == tuple(item.key for item in sources)
        kernels = future.result()
        assert [launch(kernels[item.key]) for item in sources] == [item.text for item in sources]
        assert future.result() == kernels and future.done()
        assert built(count) == 5
        # Another session with the same store builds nothing; a new kernel alone is built.
        pool.submit(kind(SETTINGS, count), sources, store).result()
        pool.submit(kind(SETTINGS, count), [*sources, source("new")], store).result()
        assert built(count) == 6


def test_small_kernels_share_a_unit_that_is_loaded_once(tmp_path):
    with BuildPool(SETTINGS) as pool:
        backend = ToyBackend(SETTINGS)
        future = pool.submit(backend, [source(f"t{i}") for i in range(10)], KernelStore(tmp_path))
        future.result()
        assert backend.loads == 1
        assert len({str(place) for place in future.places().values()}) == 10


def test_a_bad_kernel_costs_only_itself(kind, tmp_path):
    good, bad, worse = source("good"), source("bad one", "fused_bad"), source("raise")
    with BuildPool(SETTINGS) as pool:
        future = pool.submit(kind(SETTINGS), [good, bad, worse], KernelStore(tmp_path))
        outcomes = future.outcomes()
    assert launch(outcomes[good.key]) == "good"
    error = outcomes[bad.key]
    assert isinstance(error, KernelBuildError)
    assert error.command == ("toycc", "-x") and error.output == "line 1: bad"
    assert "surprise" in str(outcomes[worse.key])
    with pytest.raises(KernelBuildError):
        future.result()


def test_a_crash_is_an_error_and_the_next_build_works(tmp_path):
    with BuildPool(SETTINGS) as pool:
        backend, store = ProcessBackend(SETTINGS), KernelStore(tmp_path)
        crash = source("crash", "fused_crash")
        outcome = pool.submit(backend, [crash], store).outcomes()[crash.key]
        assert isinstance(outcome, KernelBuildError)
        assert "status 7" in str(outcome) and "fused_crash" in str(outcome)
        fine = source("fine")
        assert launch(pool.submit(backend, [fine], store).result()[fine.key]) == "fine"


def test_a_build_that_hangs_is_ended(tmp_path):
    settings = Settings(build_workers=1, build_timeout=1)
    start = time.monotonic()
    with BuildPool(settings) as pool:
        future = pool.submit(ProcessBackend(settings), [source("sleep")], KernelStore(tmp_path))
        with pytest.raises(KernelBuildError, match="build_timeout"):
            future.result()
    assert time.monotonic() - start < 20


def test_stored_kernel_that_does_not_load_is_built_again(tmp_path):
    store, item = KernelStore(tmp_path), source("text")
    with BuildPool(SETTINGS) as pool:
        pool.submit(ToyBackend(SETTINGS), [item], store).result()
    (path,) = tmp_path.rglob("kernels.json")
    path.write_text("x" * path.stat().st_size)  # as long as it was: sizes do not show it
    with BuildPool(SETTINGS) as pool:
        assert launch(pool.submit(ToyBackend(SETTINGS), [item], store).result()[item.key]) == "text"


def test_kernel_that_never_loads(tmp_path):
    class Unloadable(ToyBackend):
        def load(self, folder):
            raise OSError("no such library")

    with BuildPool(SETTINGS) as pool:
        future = pool.submit(Unloadable(SETTINGS), [source("text")], KernelStore(tmp_path))
        with pytest.raises(KernelLoadError, match="no such library"):
            future.result()


def test_kernels_under_way_are_shared(tmp_path):
    class Slow(ToyBackend):
        def build(self, sources, folder):
            time.sleep(0.3)
            super().build(sources, folder)

    count, item = tmp_path / "count", source("text")
    with BuildPool(SETTINGS) as pool:
        backend, store = Slow(SETTINGS, count), KernelStore(tmp_path / "store")
        futures = [pool.submit(backend, [item], store) for _ in range(3)]
        assert not futures[0].done()
        for future in futures:
            future.result()
    assert built(count) == 1


def test_a_store_that_goes_bad_does_not_stop_the_build(tmp_path, warnings_seen):
    root = tmp_path / "store"
    store, item = KernelStore(root), source("text")
    shutil.rmtree(root, ignore_errors=True)
    root.touch()
    with BuildPool(SETTINGS) as pool:
        kernels = pool.submit(ToyBackend(SETTINGS), [item], store).result()
    assert launch(kernels[item.key]) == "text"
    assert len(warnings_seen()) == 1


def test_division():
    assert divide([], 4) == ()
    tiny = [source(f"t{i}") for i in range(20)]
    assert len(divide(tiny, 8)) == 1
    middle = [source(f"{i}" + "x" * MIN_UNIT) for i in range(9)]
    units = divide(middle, 4)
    assert sorted(len(unit) for unit in units) == [2, 2, 2, 3]
    assert units == divide(middle[::-1], 4)
    big = [source(f"{i}" + "x" * MAX_UNIT) for i in range(3)]
    assert len(divide(big, 1)) == 3
