"""What collectives cost, by a table that was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from polyfuse.cache.records import record_text
from polyfuse.distributed import costs as stored
from polyfuse.runtime.ranks.costs import (
    KINDS,
    CollectiveCosts,
    any_costs,
    costs_of,
    forget_costs,
    kind_of,
    use_costs,
)

ROWS = ((1024, 1e-4), (4096, 2e-4), (65536, 1e-3))


def table(
    ranks: int = 2, on_host: bool = True, rows: tuple[tuple[int, float], ...] = ROWS
) -> CollectiveCosts:
    return CollectiveCosts("gloo", "cpu x", ranks, on_host, dict.fromkeys(KINDS, rows))


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    forget_costs()
    yield
    forget_costs()


@pytest.mark.parametrize(
    ("op", "kind"),
    (
        ("_c10d_functional.all_reduce_.default", "all_reduce"),
        ("_c10d_functional.all_gather_into_tensor_coalesced.default", "all_gather"),
        ("_c10d_functional.reduce_scatter_tensor.default", "reduce_scatter"),
        ("_dtensor.shard_dim_alltoall.default", "all_to_all"),
        ("_c10d_functional.broadcast.default", "broadcast"),
        ("_c10d_functional.isend.default", "send"),
        ("allgather", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("alltoall_base", "all_to_all"),
        ("allreduce_coalesced", "all_reduce"),
        ("scatter", "broadcast"),
        ("recv", "send"),
    ),
)
def test_kinds(op: str, kind: str) -> None:
    assert kind_of(op) == kind


def test_between_and_beyond_the_sizes() -> None:
    found = table()
    assert found.of("all_reduce", 1) == 1e-4
    assert found.of("all_gather", 4096) == 2e-4
    assert found.of("all_gather", 2560) == pytest.approx(1.5e-4)
    assert found.of("send", 2 * 65536) == pytest.approx(1e-3 + 9e-4)


def test_other_numbers_of_ranks() -> None:
    found = table()
    # of two ranks, half of the bytes pass a link; of four, three quarters, after twice as many messages
    assert found.of("all_gather", 65536, 4) == pytest.approx(2e-4 + 9e-4 * 1.5)
    assert found.of("all_reduce", 65536, 512) == pytest.approx(9e-4 + 9e-4 * 2 * 511 / 512)
    assert found.of("broadcast", 65536, 8) == pytest.approx(3e-4 + 9e-4)
    assert found.of("all_reduce", 65536, 1) == 1e-4


def test_a_bandwidth_and_a_latency() -> None:
    given = CollectiveCosts.given(1e9, 1e-5)
    assert given.of("all_reduce", 1e6) == pytest.approx(1e-5 + 1e-3)
    assert given.of("all_gather", 1e6, 8) == pytest.approx(3e-5 + 7 / 8 * 1e-3)
    assert given.of("send", 1e6) == pytest.approx(1e-5 + 1e-3)


def test_the_table_that_says_most() -> None:
    assert not any_costs() and costs_of("gloo", "cpu x", 2, True) is None
    use_costs([table(2), table(8), table(64, False)])
    assert costs_of("gloo", "cpu x", 4, True).ranks == 2  # type: ignore[union-attr]
    assert costs_of("gloo", "cpu x", 16, True).ranks == 8  # type: ignore[union-attr]
    assert costs_of("gloo", "cpu x", 2, False).ranks == 64  # type: ignore[union-attr]
    assert costs_of("nccl", "cpu x", 2, True) is None
    newer = table(2, rows=((1024, 5.0),))
    use_costs([newer])
    assert costs_of("gloo", "cpu x", 2, True) == newer


def test_cpu_seconds_of_a_process(tmp_path: Path) -> None:
    assert table().cpu_of("all_reduce", 4096) == 0.0, "not measured"
    cpu = {kind: tuple((n, s / 2) for n, s in ROWS) for kind in KINDS}
    found = replace(table(), cpu=cpu)
    assert found.cpu_of("send", 4096) == pytest.approx(1e-4)
    assert found.cpu_of("all_gather", 65536, 4) == pytest.approx(found.of("all_gather", 65536, 4) / 2)
    assert CollectiveCosts.read(found.plain()) == found
    stored.write_costs(tmp_path, found)
    assert stored.all_costs(tmp_path) == [found]
    # a table of before has none
    assert CollectiveCosts.read({k: v for k, v in found.plain().items() if k != "cpu"}) == table()


def test_tables_are_stored(tmp_path: Path) -> None:
    stored.write_costs(tmp_path, table(8))
    stored.write_costs(tmp_path, table(2))
    stored.write_costs(tmp_path, table(2, False))
    assert stored.read_costs(tmp_path, "gloo", "cpu x") == [table(2, False), table(2), table(8)]
    assert stored.all_costs(tmp_path) == [table(2, False), table(2), table(8)]
    assert stored.read_costs(tmp_path, "gloo", "cpu y") == []


@pytest.mark.parametrize(
    "change",
    (
        {"ranks": 1},
        {"ranks": "many"},
        {"seconds": {}},
        {"seconds": dict.fromkeys(KINDS, ((4096, 1.0), (1024, 1.0)))},
        {"seconds": dict.fromkeys(KINDS, ((1024, -1.0),))},
        {"seconds": dict.fromkeys(KINDS, ((1024, 1e9),))},
        {"seconds": dict.fromkeys(KINDS, ())},
        {"cpu": {"send": ((1024, -1.0),)}},
        {"cpu": {"send": 1.0}},
    ),
)
def test_what_cannot_have_been_measured_is_not_read(change: dict[str, object], tmp_path: Path) -> None:
    assert CollectiveCosts.read({**table().plain(), **change}) is None
    stored.write_costs(tmp_path, table())
    (path,) = tmp_path.rglob("*.json")
    path.write_text(record_text({**table().plain(), **change}))
    assert stored.all_costs(tmp_path) == []
