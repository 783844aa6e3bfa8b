"""A process that lives for long, beside another one on the same folder: its results stay right, and what it
holds stays as it is. `pytest -m slow tests/reliability/test_soak.py` takes an hour, or SOAK_SECONDS seconds.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import preforked
from polyfuse.base.settings import child_environment

SOAK = Path(__file__).resolve().parent.parent / "soak.py"
SEED = 31


@pytest.mark.skipif(sys.platform != "linux", reason="mapped regions are counted as Linux lists them")
@pytest.mark.parametrize("amount", ["6steps", pytest.param("3600", marks=pytest.mark.slow)])
def test_a_long_life_beside_another(tmp_path, amount):
    """The short one counts steps: in seconds, a busy machine would do none."""
    short = amount.endswith("steps")
    amount = amount if short else os.environ.get("SOAK_SECONDS", amount)
    limit = 1200 if short else 2 * int(amount) + 300
    environment = child_environment(POLYFUSE_CACHE_DIR=str(tmp_path / "cache"), POLYFUSE_DISABLE="halide")
    text = SOAK.read_text()
    alone = preforked.start(text, amount, str(SEED), environment=environment)
    beside = preforked.start(text, amount, str(SEED + 1), "beside", environment=environment)
    for process in (alone, beside):
        said, errors = process.communicate(timeout=limit)
        assert process.returncode == 0 and said.endswith("right\n"), f"{said[-2000:]}{errors[-3000:]}"
        assert "Traceback" not in errors, errors[-3000:]
        print(said)
        if process is alone:
            early, late = json.loads(said.splitlines()[-2])
    assert late["files"] <= early["files"] + 2 and late["threads"] <= early["threads"]
    assert late["libraries"] <= early["libraries"] + 40
    if not short:  # in the first minutes torch still loads what it needs
        assert late["regions"] < early["regions"] + 200
        assert late["bytes"] < early["bytes"] + (128 << 20)
