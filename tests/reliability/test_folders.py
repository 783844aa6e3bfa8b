"""Folders that others own or may write to, that are read-only, full, or forbid execution; and forks."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import preforked
from polyfuse.base import folders
from polyfuse.base.settings import Settings, child_environment
from polyfuse.cache import KernelStore, graph_counts, kernel_key
from polyfuse.cache.graphs import reset_graph_counts
from polyfuse.compiler.session import forget_sessions

X = torch.randn(5, 30)
KEY = kernel_key("k", "toy", {})


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 3, -1)


def check(**options: object) -> None:
    torch.compiler.reset()
    forget_sessions()
    compiled = torch.compile(f, backend="polyfuse", options={"strict": True, **options})
    torch.testing.assert_close(compiled(X), f(X))


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def test_a_folder_that_everybody_may_write_to_is_refused(cache, warned):
    cache.mkdir()
    cache.chmod(0o777)
    check()
    (text,) = warned
    assert "everybody may write to it" in text and f"chmod o-w {cache}" in text and not list(cache.iterdir())
    assert folders.readable_root(Settings.resolve()) is None
    cache.chmod(0o755)
    warned.clear()
    check()
    assert not warned and (cache / "kernels").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_a_folder_of_somebody_else_is_refused(cache, warned):
    cache.mkdir()
    os.chown(cache, 12345, 12345)
    check()
    (text,) = warned
    assert "belongs to another user (number 12345): chown it" in text and not list(cache.iterdir())


def test_a_folder_is_made_for_its_user_alone(cache):
    before = os.umask(0)
    try:
        check()
    finally:
        os.umask(before)
    assert cache.stat().st_mode & 0o077 == 0


def test_a_folder_that_is_read_only_is_read(cache, monkeypatch, warned):
    check()
    assert not warned
    # root may write anywhere, so what tries to write gets the error that it cannot
    monkeypatch.setattr(folders, "_try", lambda root: "read-only file system")
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.name != "contents.json"}
    reset_graph_counts()
    check()
    assert graph_counts().hits == 1, "the compiled graph was read"
    reset_graph_counts()
    check(graph_cache=False)
    assert warned and all("reads what is there" in text for text in warned)
    assert before == {
        path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.name != "contents.json"
    }


def test_a_full_disk_moves_the_store(monkeypatch, cache, warned):
    """The first build ends by ENOSPC; kernels are compiled all the same, and not interpreted."""
    from polyfuse.cache import store as store_module

    real, refused = store_module.seal_unit, []

    def full(folder: Path, kernels: object) -> None:
        if cache in folder.parents:
            refused.append(folder)
            raise OSError(errno.ENOSPC, "No space left on device")
        real(folder, kernels)

    monkeypatch.setattr(store_module, "seal_unit", full)
    check()
    (text,) = warned
    assert "temporary folder" in text and "cache_dir" in text
    assert len(refused) == 1, "it is not tried again"
    check()
    assert not list(cache.glob("kernels/*/.*.tmp")), "nothing is left behind"


MOUNTED = """
import torch, logging, sys
from polyfuse.base.log import get_logger
torch.set_num_threads(1)
def f(x):
    return torch.softmax(x * 3, -1)
x = torch.randn(5, 30)
torch.testing.assert_close(torch.compile(f, backend="polyfuse", options={"strict": True})(x), f(x))
print("right")
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", ["size=40k", "size=4m,noexec", "size=4m,nr_inodes=12"])
def test_a_small_or_forbidding_file_system(tmp_path, options):
    """A real one, where mounting is allowed."""
    point = tmp_path / "mounted"
    point.mkdir()
    unshare = shutil.which("unshare")
    command = f"mount -t tmpfs -o {options},mode=755 none {point} && exec {sys.executable} -c '{MOUNTED}'"
    probe = [str(unshare), "-m", "sh", "-c", f"mount -t tmpfs none {point}"]
    if unshare is None or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this machine allows no mounts")
    environment = child_environment(POLYFUSE_CACHE_DIR=str(point), POLYFUSE_DISABLE="halide")
    done = subprocess.run(
        [unshare, "-m", "sh", "-c", command], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 0 and "right" in done.stdout, done.stderr[-3000:]
    assert "temporary" in done.stderr


@pytest.mark.quick(1)
@pytest.mark.parametrize("limit", [("FSIZE", 4096), ("NOFILE", 40), ("NPROC", 60)])
def test_limits_of_the_process(tmp_path, limit):
    """Small files, few open files, few processes: right results, whatever has to be given up."""
    if limit[0] == "NPROC" and os.geteuid() == 0:
        pytest.skip("the limit of processes does not hold for root")
    script = f"""
import resource, signal, sys
sys.dont_write_bytecode = True  # a short write of compiled code is taken for the whole, by all who come later
import torch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import polyfuse.backend
resource.setrlimit(resource.RLIMIT_{limit[0]}, ({limit[1]}, {limit[1]}))
def f(x):
    return torch.softmax(x * 3, -1)
x = torch.randn(5, 30)
torch.testing.assert_close(torch.compile(f, backend="polyfuse")(x), f(x))
print("right")
"""
    environment = child_environment(POLYFUSE_CACHE_DIR=str(tmp_path / "cache"))
    done = preforked.run(script, environment=environment)
    assert done.returncode == 0 and "right" in done.stdout, done.stderr[-3000:]


def test_a_forked_child_leaves_its_parents_folder_alone():
    """It ends by `sys.exit`, so that what is to be done at the end is done in it, too."""
    script = """
import os, sys
from polyfuse.base.folders import process_folder
mine = process_folder()
(mine / "left").touch()
pid = os.fork()
if pid == 0:
    other = process_folder()
    assert other != mine and other.is_dir()
    print(other)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert (mine / "left").exists()
print(mine)
"""
    done = preforked.run(script)
    assert done.returncode == 0, done.stderr
    paths = [Path(line) for line in done.stdout.split()]
    assert len(paths) == 2 and not any(path.exists() for path in paths), "each removes its own"


def test_times_of_another_clock(tmp_path):
    """What was written in the future is neither stored for ever nor stops others from looking."""
    from polyfuse.cache.limit import sweep, trim, trim_if_due

    store = KernelStore(tmp_path)
    folder = store.add({KEY: "k"}, lambda path: (path / "code").write_bytes(bytes(1000)) and None)
    future = 4e9
    os.utime(folder / "contents.json", (future, future))
    assert store.find(KEY) is not None and (folder / "contents.json").stat().st_mtime < future
    os.utime(folder / "contents.json", (future, future))
    (tmp_path / "trimmed").touch()
    os.utime(tmp_path / "trimmed", (future, future))
    trim_if_due(tmp_path, 1)
    assert store.find(KEY) is None
    lock = tmp_path / "locks" / "old.lock"
    lock.touch()
    os.utime(lock, (future, future))
    assert sweep(tmp_path) >= 1 and trim(tmp_path, 1).left == 0
