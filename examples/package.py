"""Compile a small transformer ahead of time, and run the file in a process that loads no compiler.

python examples/package.py make model.pf
python examples/package.py run model.pf

With `native` in place of `make`, the file also runs without Python: see without_python.c.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import nn

WIDTH, TOKENS = 128, 32


def model() -> nn.Module:
    """Two layers of a transformer's encoder, with the same random weights each time."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def make(path: str, native: bool) -> None:
    """Write the package: any batch up to 64."""
    from polyfuse import aot

    sizes = {"src": {0: torch.export.Dim("batch", min=2, max=64)}}
    started = time.perf_counter()
    with torch.no_grad():
        example = torch.randn(4, TOKENS, WIDTH)
        aot.package(model(), (example,), path=path, dynamic_shapes=sizes, native=native)
    print(f"{path} was made in {time.perf_counter() - started:.1f} seconds")


def run(path: str) -> None:
    """Load the package and compare it with eager mode."""
    from polyfuse import aot

    started = time.perf_counter()
    packaged = aot.load(path)
    print(f"{path} was loaded in {1e3 * (time.perf_counter() - started):.0f} milliseconds")
    print("compilers in memory:", sorted({"sympy", "torch._dynamo", "polyfuse.compiler"} & set(sys.modules)))
    for batch in (2, 7, 64):
        x = torch.randn(batch, TOKENS, WIDTH)
        with torch.no_grad():
            difference = (packaged(x) - model()(x)).abs().max().item()
        print(f"batch {batch}: differs from eager mode by at most {difference:.1e}")


def main() -> None:
    """Make or run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("make", "native", "run"))
    parser.add_argument("path")
    arguments = parser.parse_args()
    if arguments.what == "run":
        run(arguments.path)
    else:
        make(arguments.path, native=arguments.what == "native")


if __name__ == "__main__":
    main()
