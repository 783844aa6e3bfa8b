"""Processes on one cache folder that are killed, interrupted, many at once, and files whose bits flip: no
result is wrong, nobody crashes or hangs, and the folder heals.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import preforked
from polyfuse.base.settings import child_environment

STORM = Path(__file__).resolve().parent.parent / "storm.py"
SEED = 31


def start(cache: Path, functions: int = 2, threads: int = 1) -> preforked.Started:
    environment = child_environment(POLYFUSE_CACHE_DIR=str(cache), POLYFUSE_DISABLE="halide")
    return preforked.start(STORM.read_text(), str(functions), str(threads), environment=environment)


def wait_until_it_begins(process: preforked.Started) -> None:
    """Until torch is imported and the first function is about to be compiled."""
    while process.poll(0.01) is None and "begins" not in process.output():
        pass
    assert "begins" in process.output()


def finish(process: preforked.Started) -> str:
    """Wait for a process, whose results must be right; return what it warned of."""
    said, errors = process.communicate(timeout=900)
    assert process.returncode == 0 and "right" in said, f"status {process.returncode}: {errors[-3000:]}"
    return errors


def units(cache: Path) -> list[Path]:
    return [path.parent for path in (cache / "kernels").glob("*/*/contents.json")]


@pytest.mark.parametrize("kills", [1, pytest.param(500, marks=pytest.mark.slow)])
def test_killed_at_random_moments(tmp_path, kills):
    kills = int(os.environ.get("KILLS", kills))
    rng = random.Random(SEED)
    for number in range(kills):
        process = start(tmp_path / "cache", functions=3)
        wait_until_it_begins(process)
        time.sleep(rng.uniform(0.0, 5.0))
        process.kill()
        process.communicate(timeout=60)
        if number % 25 == 24:
            finish(start(tmp_path / "cache"))
    assert "not what was built" not in finish(start(tmp_path / "cache", functions=3))
    print(f"{kills} kills, seed {SEED}: the folder was whole each time")


@pytest.mark.parametrize("sent", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_interrupted(tmp_path, sent):
    """It ends soon, leaves no compiler behind, and the next one finds a whole folder."""
    process = start(tmp_path / "cache", functions=4)
    wait_until_it_begins(process)
    time.sleep(2.0)
    process.send_signal(sent)
    process.communicate(timeout=120)
    finish(start(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("processes", "threads"),
    [(2, 3), pytest.param(32, 1, marks=pytest.mark.slow), pytest.param(2, 16, marks=pytest.mark.slow)],
)
def test_many_on_one_folder(tmp_path, processes, threads):
    """One build for each kernel, however many need it at once."""
    running = [start(tmp_path / "cache", functions=2, threads=threads) for _ in range(processes)]
    for process in running:
        finish(process)
    assert len(units(tmp_path / "cache")) == 2
    assert not list((tmp_path / "cache" / "kernels").glob("*/.*.tmp"))


def stored_files(cache: Path) -> list[Path]:
    return sorted(
        path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock" and path.stat().st_size
    )


def flip(rng: random.Random, paths: Sequence[Path], share: float) -> int:
    """Flip one bit in some of the files, at least one; a new file replaces the old one."""
    chosen = [path for path in paths if rng.random() < share] or [rng.choice(list(paths))]
    for path in chosen:
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.unlink()
        path.write_bytes(content)
    return len(chosen)


@pytest.mark.parametrize("flips", [1, pytest.param(2000, marks=pytest.mark.slow)])
def test_bits_that_flip_in_stored_files(tmp_path, flips):
    """In libraries, sources, records, graphs and whatever else there is: all right, and healed at once."""
    flips = int(os.environ.get("FLIPS", flips))
    rng, done, runs = random.Random(SEED), 0, 0
    finish(start(tmp_path / "cache"))
    kinds: dict[str, int] = {}
    while done < flips:
        paths = stored_files(tmp_path / "cache")
        for path in paths:
            kinds[path.relative_to(tmp_path / "cache").parts[0]] = 1
        done += flip(rng, paths, 0.3)
        finish(start(tmp_path / "cache"))
        runs += 1
    assert "not what was built" not in finish(start(tmp_path / "cache"))
    print(
        f"{done} flipped bits in {runs} runs, seed {SEED}, in {sorted(kinds)}: none wrong or crashed, healed"
    )


def test_an_interpreter_that_ends_at_once(tmp_path):
    """Right after the first call, and with a build still under way in a daemon thread."""
    script = """
import threading, torch
def f(x):
    return torch.softmax(x * 3, -1)
x = torch.randn(5, 30)
run = torch.compile(f, backend="polyfuse")
other = torch.compile(lambda x: x.sin().cumsum(0), backend="polyfuse")
threading.Thread(target=other, args=(x,), daemon=True).start()
run(x)
print("right")
"""
    environment = child_environment(POLYFUSE_CACHE_DIR=str(tmp_path / "cache"))
    done = preforked.run(script, environment=environment, whole_end=True)
    assert done.returncode == 0 and "right" in done.stdout, done.stderr[-3000:]
