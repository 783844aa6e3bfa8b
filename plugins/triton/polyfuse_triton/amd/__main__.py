"""``python -m polyfuse_triton.amd KERNEL.ir [--chip gfx942] [--out FOLDER]``: compile a kernel of a dump."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from polyfuse.base.errors import PolyfuseError
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from polyfuse_triton.amd.chips import CHIPS, chip_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the code and the assembly of a kernel; returns 1 where it cannot be compiled.

    Raises:
        SystemExit: the file holds a graph, not a kernel.
    """
    reader = argparse.ArgumentParser(prog="polyfuse_triton.amd", description=__doc__)
    reader.add_argument("kernel", type=Path, help="the text of a kernel, such as kernel0.ir of a dump")
    reader.add_argument("--chip", default="gfx942", help=f"one of {', '.join(CHIPS)}")
    reader.add_argument("--out", type=Path, default=Path(), help="folder for the results")
    chosen = reader.parse_args(arguments)
    try:
        from polyfuse_triton.amd.compile import compile_for

        chip = chip_of(chosen.chip)
        kernel = parse(chosen.kernel.read_text(encoding="utf-8"))
        if not isinstance(kernel, Kernel):
            raise SystemExit(f"{chosen.kernel} holds a graph; name a kernel of the dump")
        made = compile_for(chip, kernel)
    except (PolyfuseError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    chosen.out.mkdir(parents=True, exist_ok=True)
    stem = f"{chosen.kernel.stem}.{chip.name}"
    (chosen.out / f"{stem}.hsaco").write_bytes(made.code)
    (chosen.out / f"{stem}.amdgcn").write_text(made.assembly, encoding="utf-8")
    print(f"{chosen.out / stem}.hsaco: {len(made.code)} bytes, {made.shared_bytes} of shared memory; not run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
