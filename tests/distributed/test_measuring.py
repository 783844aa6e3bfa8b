"""What collectives cost is measured by all ranks together, and stored in the cache folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distributed.ranks import run_ranks
from polyfuse.distributed.costs import all_costs
from polyfuse.runtime.ranks.costs import KINDS, CollectiveCosts
from requirements import GLOO, has_gloo

if not has_gloo():
    pytest.skip(GLOO, allow_module_level=True)


def test_ranks_measure_and_keep_one_table(tmp_path: Path) -> None:
    done = run_ranks("distributed.measuring", 2, tmp_path, LOCAL_WORLD_SIZE="2")
    assert [item.returncode for item in done] == [0, 0], done
    found = [CollectiveCosts.read(json.loads(item.stdout)) for item in done]
    assert found[0] is not None and found[0] == found[1], "ranks hold the same"
    assert (found[0].library, found[0].ranks, found[0].on_host) == ("gloo", 2, True)
    for kind in KINDS:
        rows = found[0].seconds[kind]
        assert [n for n, _ in rows] == [1024, 4096] and all(s > 0 for _, s in rows)
        used = found[0].cpu[kind]
        assert [n for n, _ in used] == [1024, 4096] and all(s > 0 for _, s in used)
    assert 0 < found[0].further < 1
    assert all_costs(tmp_path / "cache") == [found[0]]
