"""`polyfuse collectives`: measure what collectives cost between the processes that run it, or show it."""

from __future__ import annotations

import argparse
import json

from polyfuse.base.settings import Settings, environment

EXAMPLE = """
torchrun --nproc-per-node 4 -m polyfuse collectives    # measure, once for a world
torchrun --nproc-per-node 2 -m polyfuse collectives --backend gloo --largest 16
polyfuse collectives                                   # show what was measured here
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("--backend", help="torch's library for collectives; default: as torch chooses")
    parser.add_argument(
        "--largest", type=int, default=256, metavar="MIB", help="MiB of the largest collective (256)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure where a launcher started several processes, else show what is in the cache folder."""
    from polyfuse.distributed.costs import all_costs

    if int(environment("WORLD_SIZE") or "1") > 1:
        tables = _measured(arguments)
    else:
        from polyfuse.cache import cache_root

        tables = [table.plain() for table in all_costs(cache_root(Settings.resolve()))]
        if not tables and not arguments.json:
            print("nothing was measured here; run: torchrun --nproc-per-node 4 -m polyfuse collectives")
    if arguments.json and tables is not None:
        print(json.dumps(tables, indent=2))
    else:
        for table in tables or ():
            print(table_text(table), end="")
    return 0


def _measured(arguments: argparse.Namespace) -> list[dict[str, object]] | None:
    """What was measured; None on other ranks than the first one, which says it."""
    import torch.distributed as dist

    from polyfuse.distributed.measure import measure_collectives

    dist.init_process_group(arguments.backend)
    try:
        table = measure_collectives(largest=arguments.largest << 20)
        return None if dist.get_rank() else [table.plain()]
    finally:
        dist.destroy_process_group()


def table_text(table: dict[str, object]) -> str:
    """A table for people: microseconds, and gigabytes per second of the largest."""
    seconds = table["seconds"]
    assert isinstance(seconds, dict)
    where = "one host" if table["on_host"] else "several hosts"
    lines = [f"{table['library']}, {table['ranks']} ranks on {where}, {table['device']}"]
    sizes = sorted({n for rows in seconds.values() for n, _ in rows})
    lines.append(f"{'us':>14}" + "".join(f"{_size(n):>10}" for n in sizes) + f"{'GB/s':>10}")
    for kind, rows in seconds.items():
        known = dict(map(tuple, rows))
        cells = "".join(f"{known[n] * 1e6:10.0f}" if n in known else " " * 10 for n in sizes)
        largest = max(known)
        lines.append(f"{kind:>14}{cells}{largest / max(known[largest], 1e-12) / 1e9:10.2f}")
    return "\n".join(lines) + "\n"


def _size(nbytes: int) -> str:
    for unit, step in (("M", 1 << 20), ("K", 1 << 10)):
        if nbytes >= step:
            return f"{nbytes // step}{unit}"
    return str(nbytes)
