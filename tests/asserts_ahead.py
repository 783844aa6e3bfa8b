"""What pytest makes of the asserts of all tests, made once: in a fresh checkout each worker would do it for
itself, since all of them collect the same files at the same time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

HERE = Path(__file__).resolve().parent


def make_share(config: pytest.Config) -> None:
    """Make, in a worker that will collect all tests, those of its share that nobody has made yet."""
    worker = getattr(config, "workerinput", None)
    folder = config.invocation_params.dir
    if not worker or sys.dont_write_bytecode or [(folder / each).resolve() for each in config.args] != [HERE]:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in sorted(HERE.rglob("test_*.py"))[number::count]:
        cache = rewrite.get_cache_dir(path)
        made = cache / (path.name[:-3] + rewrite.PYC_TAIL)
        if not made.exists() and rewrite.try_makedirs(cache):
            described, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, described, made)
