"""What the processes of one program spend on their first step, all on this host, with an empty cache folder.

    PYTHONPATH=benchmarks python -m polyfuse_bench.cold_ranks --ranks 1,8 --only "alone,DDP"

Each rank imports torch and what the cases need, then a step of training of four transformer blocks is
compiled and run (`parallel_cases.py`). Counted is the CPU time of each rank and of the compilers that it
starts, from the first call to the end of the step.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from polyfuse.base.settings import child_environment
from polyfuse_bench.child import child_environment as with_byte_code
from polyfuse_bench.compile_time import keep_byte_code

ALONE = "alone"
USUAL = (ALONE, "DDP", "FSDP2, whole", "FSDP2, by block", "tensor parallel")
SECONDS = 900
"""After which ranks are taken to hang."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Start the ranks of each case, and print what they spent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="1,8")
    parser.add_argument("--only", default=";".join(USUAL), help="cases, with semicolons between them")
    parser.add_argument("--backend", default="polyfuse")
    parser.add_argument("--capture", action="store_true", help="with `capture_cache`")
    parser.add_argument("--warm", action="store_true", help="once more, with the cache of the first time")
    parser.add_argument("--profile", type=Path, help="a folder for the profile of each rank")
    given = parser.parse_args(arguments)
    keep_byte_code()
    for case in given.only.split(";"):
        for count in map(int, given.ranks.split(",")):
            with tempfile.TemporaryDirectory(prefix="polyfuse-bench-") as name:
                for age in ("cold", "warm") if given.warm else ("cold",):
                    run_name = f"{case.replace(' ', '-')}-{count}-{age}"
                    profiles = "" if given.profile is None else str(given.profile / run_name)
                    found = start(case, count, Path(name), given.backend, given.capture, profiles)
                    print(f"{case}, {count} ranks, {age}: {summary(found)}", flush=True)


def summary(found: Sequence[dict[str, Any]]) -> str:
    """The sum of all ranks, what each of them spent, and how many graphs each traced."""
    spent = sorted((rank["seconds"] for rank in found), reverse=True)
    imported = sum(rank["imported"] for rank in found) / len(found)
    traced = " ".join(str(rank["traced"]) for rank in found)
    each = " ".join(f"{seconds:.2f}" for seconds in spent)
    return f"{sum(spent):.1f} s, each {each}; before {imported:.1f} a rank; graphs traced {traced}"


def start(
    case: str, count: int, folder: Path, backend: str, capture: bool, profiles: str = ""
) -> list[dict[str, Any]]:
    """What each of `count` ranks says of itself."""
    given = with_byte_code(
        child_environment(
            OMP_NUM_THREADS="1",
            POLYFUSE_CACHE_DIR=str(folder / "polyfuse"),
            TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor"),
            POLYFUSE_CAPTURE_CACHE=str(int(capture)),
        )
    )
    program = "import sys; from polyfuse_bench.cold_ranks import be_rank; be_rank(*sys.argv[1:])"
    meeting = tempfile.mktemp(prefix="meeting-", dir=folder)
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program, case, str(number), str(count), meeting, backend]
            + [profiles],
            env=given,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    try:
        answers = [child.communicate(timeout=SECONDS)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    return [json.loads(answer.splitlines()[-1]) for answer in answers]


def be_rank(case: str, number: str, count: str, meeting: str, backend: str, profiles: str) -> None:
    """Be one of the ranks, and print as JSON what its first step took."""
    import torch.distributed as dist
    from torch._dynamo.utils import counters

    from polyfuse_bench import parallel_cases

    import_module("torch._functorch.aot_autograd")
    rank, world = int(number), int(count)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    sizes = parallel_cases.Sizes(width=64, length=16, blocks=4)
    make = parallel_cases.alone if case == ALONE else parallel_cases.CASES[case]
    step = make(backend, sizes, rank, world)
    profiler, imported = cProfile.Profile(), _spent()
    if profiles:
        profiler.enable()
    step()
    profiler.disable()
    found = {"seconds": _spent() - imported, "imported": imported}
    if profiles:
        Path(profiles).parent.mkdir(parents=True, exist_ok=True)
        profiler.dump_stats(f"{profiles}-{rank}.prof")
    print(json.dumps(found | {"traced": counters["stats"]["unique_graphs"]}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _spent() -> float:
    """CPU seconds of this process and of those that it started, as far as they have ended."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(found.ru_utime + found.ru_stime for found in map(resource.getrusage, who))


if __name__ == "__main__":
    main()
