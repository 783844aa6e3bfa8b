from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

from polyfuse.base.errors import KernelBuildError, KernelLoadError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore
from polyfuse.plugin import Launchable
from polyfuse.workers import BuildPool
from polyfuse.workers.pool import MAX_UNIT, divide
from toy_backend import ProcessBackend, StartedBackend, ToyBackend, source

SETTINGS = Settings(build_workers=2, build_timeout=300)


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
        assert len({str(location) for location in future.locations().values()}) == 10


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


def test_a_bad_kernel_of_many_is_found_by_halves(tmp_path, monkeypatch):
    good = [source(f"good {i}") for i in range(15)]
    tried: list[int] = []
    attempt = BuildPool._attempt

    def counted(pool, backend, sources, *more):
        tried.append(len(sources))
        return attempt(pool, backend, sources, *more)

    monkeypatch.setattr(BuildPool, "_attempt", counted)
    with BuildPool(Settings(build_workers=1)) as pool:
        bad = source("bad one")
        outcomes = pool.submit(ToyBackend(SETTINGS), [*good, bad], KernelStore(tmp_path / "one")).outcomes()
        assert sorted(tried) == [1, 1, 2, 2, 4, 4, 8, 8, 16]
        assert isinstance(outcomes[bad.key], KernelBuildError)
        assert [launch(outcomes[item.key]) for item in good] == [item.text for item in good]
        # where one is to blame in either half, nothing is built a third time
        tried.clear()
        worse = [source(f"bad {i}") for i in range(16)]
        outcomes = pool.submit(ToyBackend(SETTINGS), worse, KernelStore(tmp_path / "all")).outcomes()
        assert sorted(tried) == [*[1] * 16, 8, 8, 16]
        assert all(isinstance(outcomes[item.key], KernelBuildError) for item in worse)


def test_a_refused_kernel_costs_only_itself(kind, tmp_path):
    good, refused = source("good"), source("refuse")
    with BuildPool(SETTINGS) as pool:
        outcomes = pool.submit(kind(SETTINGS), [good, refused], KernelStore(tmp_path)).outcomes()
    assert launch(outcomes[good.key]) == "good"
    error = outcomes[refused.key]
    assert isinstance(error, UnsupportedError) and error.cause == "not in this configuration"


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
    with BuildPool(settings) as pool:
        future = pool.submit(ProcessBackend(settings), [source("sleep")], KernelStore(tmp_path))
        with pytest.raises(KernelBuildError, match="build_timeout"):
            future.result()


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
    all_wanted = threading.Event()

    class Slow(ToyBackend):
        def build(self, sources, folder):
            all_wanted.wait(300)
            super().build(sources, folder)

    count, item = tmp_path / "count", source("text")
    with BuildPool(SETTINGS) as pool:
        backend, store = Slow(SETTINGS, count), KernelStore(tmp_path / "store")
        futures = [pool.submit(backend, [item], store) for _ in range(3)]
        assert not futures[0].done()
        all_wanted.set()
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
    assert divide([], 4, 1500) == ()
    tiny = [source(f"t{i}") for i in range(20)]
    assert len(divide(tiny, 8, 1500)) == 1
    middle = [source(f"{i}" + "x" * 1500) for i in range(9)]
    units = divide(middle, 4, 1500)
    assert sorted(len(unit) for unit in units) == [2, 2, 2, 3]
    assert units == divide(middle[::-1], 4, 1500)
    big = [source(f"{i}" + "x" * MAX_UNIT) for i in range(3)]
    assert len(divide(big, 1, 1500)) == 3
    # as many for each worker
    many = [source(f"{i}" + "x" * (MAX_UNIT // 4)) for i in range(10)]
    assert [len(unit) for unit in divide(many, 2, 1500)] == [3, 3, 2, 2]
    # where starting a build costs nothing, each is on its own, the longest first
    assert [len(unit) for unit in divide([*tiny, *big], 2, 1)] == [1] * 23
    assert {unit[0].key for unit in divide([*tiny, *big], 2, 1)[:3]} == {item.key for item in big}


def test_each_kernel_is_a_unit_where_the_backend_wants_it(tmp_path):
    class Lone(ToyBackend):
        min_unit = 1

    with BuildPool(SETTINGS) as pool:
        backend = Lone(SETTINGS)
        pool.submit(backend, [source(f"t{i}") for i in range(4)], KernelStore(tmp_path)).result()
        assert backend.loads == 4


class TestPreparation:
    def test_workers_start_before_there_is_work(self, tmp_path):
        backend = StartedBackend(SETTINGS, tmp_path / "count")
        with BuildPool(SETTINGS) as pool:
            pool.prepare(backend, 5)
            pool.prepare(backend, 5)
            wait_for(lambda: started(tmp_path) == 2)
            item = source("text")
            assert launch(pool.submit(backend, [item], KernelStore(tmp_path)).result()[item.key]) == "text"
        # no more than may build at once, and the build used one of them
        assert started(tmp_path) == 2

    def test_a_start_that_fails_costs_nothing(self, tmp_path):
        class Failing(StartedBackend):
            worker_start = "toy_backend:no_such_function"

        with BuildPool(SETTINGS) as pool:
            backend, item = Failing(SETTINGS, tmp_path / "count"), source("text")
            pool.prepare(backend, 1)
            assert launch(pool.submit(backend, [item], KernelStore(tmp_path)).result()[item.key]) == "text"

    def test_backends_that_start_compilers_have_nothing_to_prepare(self, tmp_path):
        with BuildPool(SETTINGS) as pool:
            pool.prepare(ToyBackend(SETTINGS, tmp_path / "count"), 4)
            assert pool._prepared == 0

    def test_where_all_is_in_the_store_one_is_enough(self, tmp_path):
        store, backend = KernelStore(tmp_path), StartedBackend(SETTINGS, tmp_path / "count")
        with BuildPool(SETTINGS) as pool:
            pool.submit(backend, [source("text")], store).result()
        with BuildPool(SETTINGS) as pool:
            pool.submit(backend, [source("text")], store).result()
            pool.prepare(backend, 4)
            assert pool._prepared == 1


def started(folder: Path) -> int:
    path = folder / "count.started"
    return len(path.read_text().split()) if path.exists() else 0


def wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
