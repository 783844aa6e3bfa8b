"""A backend that lets the reference interpreter run its kernels, and the calls of its methods."""

# begin: tiny
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from polyfuse.plugin import Backend, No, Pointwise, Settings, Source, Yes, parse_kernel, run_kernel, text


class Tiny(Backend):
    spawns_compiler = False

    def claims(self, node):
        return Yes() if isinstance(node, Pointwise) else No("only pointwise nodes")

    def emit(self, kernel, config=None):
        return Source(kernel.name, text(replace(kernel, name=Source.SYMBOL)), "polyfuse ir")

    def build(self, sources, folder):
        for source in sources:
            (folder / source.key).write_text(source.rendered())

    def load(self, folder):
        return {path.name: partial(launch, parse_kernel(path.read_text())) for path in folder.iterdir()}


def launch(kernel, *args):
    run_kernel(kernel, args)


# begin: tiny-call
kernel = parse_kernel("""
kernel double on cpu {
  numerics fast
  axes i0{8} ~ 8
  in in0: f32[8]
  out out0: f32[8]
  once {
    v0 = load f32 in0[i0]
    v1 = add f32 (v0, v0)
    store f32 set out0[i0] = v1
  }
}
""")
backend, folder = Tiny(Settings()), Path(tempfile.mkdtemp())
source = backend.emit(kernel)
backend.build([source], folder)
x, y = torch.randn(8), torch.empty(8)
backend.load(folder)[source.key](x, y)
torch.testing.assert_close(y, x + x)
