"""`polyfuse explain --world`: one rank of larger worlds, simulated in this process."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.process import python_command
from polyfuse.base.settings import Settings

if TYPE_CHECKING:
    from polyfuse.runtime.ranks.costs import CollectiveCosts


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    group = parser.add_argument_group("one rank of a larger world")
    group.add_argument(
        "--world",
        type=world_sizes,
        default=(),
        metavar="RANKS",
        help="play the first rank of so many, such as 8,64,512: a step's seconds, what of it waits, memory",
    )
    group.add_argument("--per-host", type=int, default=8, metavar="N", help="ranks on each host (8)")
    group.add_argument(
        "--cores", type=int, metavar="N", help="CPU cores of each host, for all its ranks (as many as here)"
    )
    group.add_argument(
        "--library", default="", help="whose measured costs are used, such as gloo (`polyfuse collectives`)"
    )
    group.add_argument(
        "--network", type=float, metavar="MB/S", help="costs of a link of so many megabytes a second instead"
    )
    group.add_argument(
        "--latency",
        type=float,
        default=20.0,
        metavar="US",
        help="with --network: microseconds of a message (20)",
    )
    group.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="with --world: write a page with the timeline of a step, too",
    )


def world_sizes(text: str) -> tuple[int, ...]:
    """The numbers of ranks in an argument."""
    sizes = tuple(int(part) for part in text.split(",") if part.strip())
    if not sizes or min(sizes) < 2:
        raise argparse.ArgumentTypeError("numbers of ranks from 2 on are wanted, such as 8,64")
    return sizes


def run(arguments: argparse.Namespace, program: Callable[[], int]) -> int:
    """Simulate one world here, or each of several in a process of its own; print what a step takes."""
    tables = _tables(arguments)
    if len(arguments.world) > 1:
        status, worlds = _apart(arguments)
    else:
        with redirect_stdout(sys.stderr if arguments.json else sys.stdout):
            status, found = _played(arguments, tables, program)
        worlds = [found]
    if arguments.html is not None:
        from polyfuse.reporting.worlds import write_worlds_page

        title = " ".join([Path(arguments.program).name, *arguments.arguments])
        write_worlds_page(arguments.html, worlds, title)
        print(f"polyfuse explain: wrote {arguments.html}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"worlds": worlds}, indent=2))
    else:
        print(worlds_text(worlds), end="")
    return status


def _tables(arguments: argparse.Namespace) -> tuple[CollectiveCosts, ...]:
    """What collectives cost, as it was given or measured."""
    from polyfuse.cache import cache_root
    from polyfuse.distributed.simulated import measured_tables
    from polyfuse.runtime.ranks.costs import CollectiveCosts

    if arguments.network:
        return (CollectiveCosts.given(arguments.network * 1e6, arguments.latency * 1e-6),)
    tables = measured_tables(cache_root(Settings.resolve()), arguments.library)
    if not tables:
        raise PolyfuseError(
            "nothing is known of what collectives cost here",
            "run torchrun --nproc-per-node 2 -m polyfuse collectives, or give --network and --latency",
        )
    return tables


def _played(
    arguments: argparse.Namespace, tables: tuple[CollectiveCosts, ...], program: Callable[[], int]
) -> tuple[int, dict[str, object]]:
    from polyfuse.distributed.simulated import World, simulated_rank
    from polyfuse.reporting.collect import Collector

    cores = arguments.cores or Settings().build_worker_count()  # as many CPUs as there are
    with simulated_rank(World(arguments.world[0], arguments.per_host, tables, cores)) as rank:

        class StepStart(Collector):
            """Begins a step after each compile, which is not part of it."""

            def built(self, aten: Any, built: object) -> None:
                rank.timeline.begin()

        with StepStart(measure=False).watching():
            status = program()
        return status, rank.result()


def _apart(arguments: argparse.Namespace) -> tuple[int, list[dict[str, Any]]]:
    status, worlds = 0, list[dict[str, Any]]()
    for ranks in arguments.world:
        words = ["explain", "--json", "--world", str(ranks), "--per-host", str(arguments.per_host)]
        words += ["--latency", str(arguments.latency)]
        words += ["--cores", str(arguments.cores)] if arguments.cores else []
        words += ["--network", str(arguments.network)] if arguments.network else []
        words += ["--library", arguments.library] if arguments.library else []
        words += ["-m"] if arguments.module else []
        command = python_command("polyfuse", *words, arguments.program, *arguments.arguments)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        status = status or done.returncode
        try:
            worlds += json.loads(done.stdout)["worlds"]
        except ValueError:
            print(f"the world of {ranks} ranks was not played to its end", file=sys.stderr)
    return status, worlds


def worlds_text(worlds: Sequence[dict[str, Any]]) -> str:
    """A line for each world."""
    from polyfuse.reporting.worlds import collectives_text, hidden_seconds

    titles = f"{'ranks':>6}{'step ms':>10}{'computing':>11}{'exposed':>10}{'hidden':>10}{'peak MiB':>10}"
    lines = [f"{titles}  collectives"]
    for world in worlds:
        cells = [world["seconds"], world["computing"], world["exposed"], hidden_seconds(world)]
        first, *rest = (f"{seconds * 1e3:.2f}" for seconds in cells)
        lines.append(
            f"{world['ranks']:6}{first:>10}{rest[0]:>11}{rest[1]:>10}{rest[2]:>10}"
            f"{world['peak_bytes'] / 2**20:10.0f}  {collectives_text(world)}"
        )
    if any(not world["steps"] for world in worlds):
        lines.append("no step repeats: the numbers are of all after the last compile; run more steps")
    costs = sorted({world["costs"] for world in worlds})
    cores = sorted({world["cores"] for world in worlds if world["cores"]})
    lines += [f"hosts have {n} cores for all their ranks" for n in cores]
    lines.append(f"costs of collectives: {', '.join(costs)}; losses mean nothing here")
    return "\n".join(lines) + "\n"
