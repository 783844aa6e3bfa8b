"""`python -m polyfuse_bench fuzz`: random programs, compiled with random configurations, against float64."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from polyfuse_bench.fuzz.campaign import Campaign, Tally, search
from polyfuse_bench.results import RESULTS

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Search, or shrink what a search found. 1 where something is wrong."""
    options = _parser().parse_args(arguments)
    campaign = Campaign(
        options.backend,
        options.device,
        options.seed,
        options.count,
        options.jobs,
        options.batch,
        options.minutes,
        options.out,
    )
    if campaign.out is None:
        campaign = Campaign(**{**vars(campaign), "out": RESULTS / f"{campaign.name}.json"})
    console = Console()
    if options.shrink:
        from polyfuse_bench.fuzz.shrink import shrink_seeds

        seeds = [int(seed) for seed in options.shrink.split(",")]
        for path in shrink_seeds(seeds, campaign.generator, campaign.device, options.folder, options.within):
            console.print(f"wrote {path}", highlight=False)
        return 0

    def show(tally: Tally, line: str) -> None:
        if line:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            counts = ", ".join(f"{n} {name}" for name, n in sorted(tally.outcomes.items()))
            console.print(f"{len(tally.done)} programs, {tally.kernels} kernels: {counts}", highlight=False)

    tally, path = search(campaign, show)
    facts = tally.facts()
    console.print(
        f"{facts['graphs']} programs in {facts['seconds']} s, {facts['graphs_per_core_second']} a second of "
        f"one core; {len(tally.findings)} findings; wrote {path}",
        highlight=False,
    )
    return 1 if tally.findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="polyfuse_bench fuzz", description=__doc__)
    parser.add_argument("--backend", default="cpp", help="cpp, halide, triton, or interpreter")
    parser.add_argument("--device", default="cpu", help="cpu (where Triton is interpreted), cuda")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--count", type=int, default=1000, help="programs, one for each seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes, one for each core")
    parser.add_argument(
        "--batch",
        type=int,
        default=0,
        help="programs that a process takes at a time; 0: 32 in C++, whose kernels share a build, else 8",
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="begin nothing after that; 0: no limit")
    parser.add_argument("--out", type=Path, help="result file; one that exists is continued")
    shrinking = parser.add_argument_group("shrinking")
    shrinking.add_argument("--shrink", default="", help="seeds of findings, comma-separated, to make small")
    shrinking.add_argument("--folder", type=Path, default=Path("found"), help="where the small files go")
    shrinking.add_argument("--within", type=float, default=120.0, help="seconds for each")
    return parser
