"""Shared by all tests: verification on, caches in a folder of the run, golden files with one switch."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

try:
    from _pytest.unraisableexception import gc_collect_iterations_key
except ImportError:  # before pytest 8.4
    gc_collect_iterations_key = None

import asserts_ahead
import built_libraries
import file_order
import preforked
import sampling
import seeding
import torch_costs

ROOT = Path(__file__).resolve().parent.parent

# Before anything resolves settings. Workers of one run share the folder, so that a kernel that many
# tests need is built once; it is not the user's.
_caches = tempfile.TemporaryDirectory(prefix="polyfuse-tests-", ignore_cleanup_errors=True)
os.environ.setdefault("POLYFUSE_VERIFY", "1")
# an error under CI alone otherwise
os.environ.setdefault("TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING", "1")
os.environ.setdefault("POLYFUSE_CACHE_DIR", _caches.name)
# Trio's plugin of Hypothesis imports Trio, and collects garbage among all that a worker has imported
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")
    parser.addoption("--seed", type=int, default=0, help="give other random numbers to all tests")


def pytest_configure(config: pytest.Config) -> None:
    if gc_collect_iterations_key is not None:
        config.stash[gc_collect_iterations_key] = 1  # at the end; five times by default, of seconds each
    seeding.keep(config.getoption("--seed"))
    gc.disable()  # modules and items stay until the end: looking for garbage among them is in vain
    # workers of one run and later runs share it; `--cache-clear` empties it
    if hasattr(config, "cache") and not hasattr(config, "workerinput"):
        os.environ["LIBRARIES_OF_TESTS"] = str(config.cache.mkdir("libraries"))
        built_libraries.forget_old(Path(os.environ["LIBRARIES_OF_TESTS"]))
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        preforked.share()  # with the workers


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """One more than there are cores: some tests wait for processes and for limits of time."""
    return 1 + (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    return file_order.scheduler(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    asserts_ahead.make_share(session.config)


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):
        seeding.begin(collector.nodeid)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sampling.mark_others_slow(items)
    items[:] = file_order.longest_first(items)
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not _has_gpu():
        from requirements import GPU

        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=GPU))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()  # nor do the collections that tests cause or ask for look at them
    torch_costs.collect_seldom()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        _end()
    gc.unfreeze()  # libraries that count their objects at the end find none left
    gc.enable()


def _end() -> None:
    """Of a worker that has reported all: nobody needs what taking a million objects apart would leave."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    seeding.begin(item.nodeid)
    seeding.draw_from_nothing_imported()
    torch_costs.spare()
    torch_costs.look_at_new_objects_only(getattr(item, "module", None))
    if "LIBRARIES_OF_TESTS" in os.environ:
        built_libraries.keep(Path(os.environ["LIBRARIES_OF_TESTS"]))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return `check(name, text)`: compares text with `tests/golden/<name>`, or writes that."""

    def check(name: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / name
        wanted = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted, encoding="utf-8")
            return
        assert path.exists(), f"{path} is missing; run pytest --update-golden"
        assert path.read_text(encoding="utf-8") == wanted

    return check


@pytest.fixture(autouse=True)
def environment_as_before() -> Iterator[None]:
    """Take back what a command, called as a function, sets for the rest of its process."""
    before = {name: text for name, text in os.environ.items() if name.startswith("POLYFUSE_")}
    yield
    for name in [name for name in os.environ if name.startswith("POLYFUSE_") and name not in before]:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def interpreted_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The IR's interpreter runs all kernels: building them is most of a test that is about something else."""
    monkeypatch.setenv("POLYFUSE_BACKENDS", "interpreter")


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Remove every variable of Polyfuse, for tests of the settings themselves."""
    for name in list(os.environ):
        if name.startswith("POLYFUSE_"):
            monkeypatch.delenv(name)
    yield monkeypatch


@pytest.fixture
def warnings_seen(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Return a function that lists the warnings Polyfuse logged since the test began, each counted afresh."""
    from polyfuse.base import log

    log.reset_warned()
    yield lambda: [record.getMessage() for record in caplog.records if record.name.startswith("polyfuse")]
    log.reset_warned()
