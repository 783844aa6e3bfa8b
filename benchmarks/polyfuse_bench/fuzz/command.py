"""`python -m polyfuse_bench fuzz`: random programs, compiled with random configurations, against float64."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from polyfuse.base.text import shorten
from polyfuse_bench.fuzz.campaign import Campaign, Tally, search
from polyfuse_bench.results import RESULTS

__all__ = ["main", "summary"]


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
        _seeds(options),
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
    for line in summary(campaign, tally):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return 1 if tally.findings else 0


def summary(campaign: Campaign, tally: Tally) -> list[str]:
    """What a search came to, in few lines: the counts, then each finding."""
    facts = tally.facts()
    counts = ", ".join(f"{n} {name}" for name, n in facts["outcomes"].items()) or "none"
    left = sum(seed not in tally.done for seed in campaign.wanted)
    lines = [
        f"{campaign.backend} on {campaign.device}: {facts['graphs']} programs ({counts}), {facts['kernels']} "
        f"kernels ({facts['configured']} not in the first configuration) in {facts['seconds']} s, "
        f"{facts['graphs_per_core_second']} a second of one core; {len(tally.findings)} findings; {left} left"
    ]
    for row in sorted(tally.findings, key=lambda row: row["seed"]):
        who = " (interpreter)" if row.get("backend") else ""
        lines.append(f"  {row['seed']}{who}: {shorten(row['outcome'].splitlines()[0], 140)}")
    return lines


def _seeds(options: argparse.Namespace) -> tuple[int, ...]:
    """The seeds that are named, and those of a file's findings."""
    found = [int(seed) for seed in options.seeds.split(",") if seed]
    if options.again is not None:
        found += [row["seed"] for row in json.loads(options.again.read_text())["rows"]]
        if options.out in (None, options.again):
            raise SystemExit("--again needs --out with the name of another file")
        if not found:
            raise SystemExit(f"{options.again} has no findings: there is nothing to search again")
    return tuple(dict.fromkeys(found))


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
    parser.add_argument(
        "--minutes",
        type=float,
        default=0.0,
        help="begin nothing after that, and end within one more; 0: no limit",
    )
    parser.add_argument("--out", type=Path, help="result file; one that exists is continued")
    parser.add_argument("--seeds", default="", help="these alone, comma-separated")
    parser.add_argument("--again", type=Path, help="the seeds of this result file's findings alone")
    shrinking = parser.add_argument_group("shrinking")
    shrinking.add_argument("--shrink", default="", help="seeds of findings, comma-separated, to make small")
    shrinking.add_argument("--folder", type=Path, default=Path("found"), help="where the small files go")
    shrinking.add_argument("--within", type=float, default=120.0, help="seconds for each")
    return parser
