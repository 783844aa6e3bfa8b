"""The backend: what it claims, how it builds, and how a kernel is given to a queue."""

import ctypes
import json

import torch

from polyfuse.plugin import Backend, Config, KernelLaunchError, Source
from polyfuse_sim import codegen
from polyfuse_sim.device import SimDevice  # noqa: F401 - and gives torch the device
from polyfuse_sim.driver import LIBRARY, compile_library

FLAGS = ("-O2", "-fwrapv", "-ffp-contract=off", "-w")


class SimBackend(Backend):
    """Kernels in C++ for the simulated accelerator."""

    def claims(self, node):
        return codegen.claims(node)

    def configs(self, kernel):
        return [Config.of(unroll=n) for n in ((1, 4) if kernel.raxes else (1,))]

    def emit(self, kernel, config=None):
        text = codegen.kernel_text(kernel, config.get("unroll", 1) if config else 1)
        return Source(kernel.name, text, "cpp", meta=" ".join(arg.kind for arg in kernel.args))

    def build(self, sources, folder):
        unit = folder / "unit.cpp"
        unit.write_text("\n".join([codegen.HEADER, *dict.fromkeys(source.rendered() for source in sources)]))
        (folder / "unit.json").write_text(json.dumps({source.key: source.meta for source in sources}))
        compile_library(unit, folder / "unit.so", *FLAGS)

    def load(self, folder):
        return load_packaged(folder, {})

    def synchronize(self):
        torch.sim.synchronize()

    def describe(self):
        return {"generator": "1", "flags": " ".join(FLAGS)}


def load_packaged(folder, facts):
    """The kernels of a built folder."""
    library = ctypes.CDLL(str(folder / "unit.so"))
    kinds = json.loads((folder / "unit.json").read_text())
    return {key: Launch(library, key, kind.split()) for key, kind in kinds.items()}


class Launch:
    """Puts a kernel into the queue of the current stream."""

    def __init__(self, library, key, kinds):
        self.library, self.name, self.kinds = library, f"k_{key}", kinds
        self.function = ctypes.cast(getattr(library, self.name), ctypes.c_void_p)
        self.array = ctypes.c_int64 * len(kinds)

    def __call__(self, *args):
        rows = [(value, 0, -1) if kind == "size" else extent(value) for kind, value in zip(self.kinds, args)]
        values, nbytes, elements = (
            (self.array(*column) for column in zip(*rows)) if rows else 3 * [self.array()]
        )
        if LIBRARY.sim_launch(self.function, len(rows), values, nbytes, elements):
            raise KernelLaunchError(f"kernel {self.name} was refused: {LIBRARY.sim_error().decode()}")


def extent(tensor):
    """Where a buffer begins, its bytes, and its elements up to the last one of the tensor."""
    count = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    return tensor.data_ptr(), count * tensor.itemsize, count
