"""Running a generated kernel's epilogue on the CPU, with the sums of products from torch."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from polyfuse.ir.kernel import Kernel
from polyfuse.symbolic import evaluate
from polyfuse_cutlass.build.meta import KernelMeta
from polyfuse_cutlass.codegen.hopper import hopper_source
from polyfuse_cutlass.launch.launcher import resolved
from polyfuse_cutlass.problem import Matrix, extent, problem_of
from polyfuse_cutlass.tiling import Tiling
from precompiled import standard_headers

__all__ = ["run_on_host"]

_HEADER = Path(__file__).with_name("cutlass_host.h")
_GROUPS = """
PF_REDUCE(struct Matrix {
  const std::vector<Reduced>& of;
  int rows, columns;
  template <class F, int K> void reduce(const Args& args, int batch) const {
    const int height = F::OVER_ROWS ? 16 : 1, width = F::OVER_ROWS ? 1 : 32;
    for (int x = 0; x < rows; x += height)
      for (int y = 0; y < columns; y += width) {
        f32 all = F().nothing();
        for (int i = x; i < x + height && i < rows; ++i)
          for (int j = y; j < y + width && j < columns; ++j)
            all = F().both(all, of[(i * columns + j) / VEC].of[K][j % VEC]);
        F().store(args, batch, x, y, all);
      }
  }
};)
"""
_RUN = """
extern "C" void run(const Args* args, const Acc* sums) {
  const int X = extent_x(*args), Y = extent_y(*args);
  for (int batch = 0; batch < batches(*args); ++batch) {
    PF_REDUCE(std::vector<Reduced> reduced(X * Y / VEC);)
    for (int x = 0; x < X; x += VEC_X ? VEC : 1)
      for (int y = 0; y < Y; y += VEC_X ? 1 : VEC) {
        Acc sum[VEC];
        for (int j = 0; j < VEC; ++j)
          sum[j] = sums[((i64)batch * X + x + (VEC_X ? j : 0)) * Y + y + (VEC_X ? 0 : j)];
        finish(*args, batch, x, y, sum PF_REDUCE(, reduced[(x * Y + y) / VEC]));
      }
    PF_REDUCE(reduce_all(*args, batch, Matrix{reduced, X, Y});)
  }
}
}
"""
_RUN_ROUNDED = """
extern "C" void run(const Args* args, const Acc* sums, Result* results, const i64* steps) {
  const int X = extent_x(*args), Y = extent_y(*args);
  for (int batch = 0; batch < batches(*args); ++batch) {
    int of[RESULT_BATCHES];
    result_batches(*args, batch, of);
    Result* matrix = results;
    PF_REDUCE(std::vector<Reduced> reduced(X * Y / VEC);)
    for (int i = 0; i < RESULT_BATCHES; ++i) matrix += of[i] * steps[1 + i];
    for (int x = 0; x < X; ++x)
      for (int y = 0; y < Y; y += VEC) {
        OfRow row;
        OfColumns columns;
        fetch_row(*args, batch, x, row);
        fetch_columns(*args, batch, y, columns);
        const i64 at = ((i64)batch * X + x) * Y + y;
        const Acc sum[VEC] = {sums[at], sums[at + 1]};
        f32 to[VEC];
        finish(*args, batch, x, y, sum, row, columns, to PF_REDUCE(, reduced[(x * Y + y) / VEC]));
        for (int j = 0; j < VEC; ++j) matrix[x * steps[0] + y + j] = memory_form<Result>::of(to[j]);
      }
    PF_REDUCE(reduce_all(*args, batch, Matrix{reduced, X, Y});)
  }
}
}
"""


def run_on_host(kernel: Kernel, operands: Sequence[torch.Tensor | int], tiling: Tiling, folder: Path) -> None:
    """Execute a kernel on tensors of the CPU: products by torch, everything else by its own text.

    Results that the copy engine stores go to where its map says.
    """
    problem = problem_of(kernel)
    if tiling.swap:
        problem = problem.swapped
    made = hopper_source(problem_of(kernel), tiling)
    text, meta = made.rendered(), KernelMeta.parse(made.meta)
    rounded = len(meta.maps) > 2
    start, end = text.index("#ifndef PF_MATH"), text.index("// The kernel:")
    text = text[start:end]
    text = text[: text.index("#ifndef PF_HOPPER")] + text[text.index("namespace in_") :]
    text = re.sub(r"PF_INLINE void product\(.*?^}$", "", text, flags=re.S | re.M)
    text = re.sub(r"#pragma unroll.*", "", text)
    source = folder / "epilogue.cpp"
    source.write_text(f'#include "{_HEADER}"\n{text}{_GROUPS}{_RUN_ROUNDED if rounded else _RUN}')
    compiler = shutil.which("g++") or "c++"
    command = [compiler, "-std=gnu++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w"]
    headers = standard_headers(command, "math.h", "string.h", "vector")
    output = ["-o", str(folder / "epilogue.so")]
    subprocess.run([*command, *headers, str(source), *output], check=True, timeout=600)
    values = dict(zip((arg.name for arg in kernel.args), operands, strict=True))
    sizes = {name: value for name, value in values.items() if isinstance(value, int)}
    counts = [evaluate(extent(a), sizes) for a in problem.batch]
    depth = evaluate(extent(problem.depth), sizes)

    def matrix(one: Matrix, rows: int) -> torch.Tensor:
        tensor = values[one.arg.name]
        assert isinstance(tensor, torch.Tensor)
        steps = [evaluate(s, sizes) for s in (*one.batch, one.row, one.depth)]
        return torch.as_strided(tensor, (*counts, rows, depth), steps, evaluate(one.offset, sizes))

    left = matrix(problem.left, evaluate(extent(problem.rows), sizes))
    right = matrix(problem.right, evaluate(extent(problem.columns), sizes))
    sums = (left.double() @ right.double().transpose(-1, -2)).to(problem.dtype.torch).contiguous()
    packed = (ctypes.c_uint64 * len(operands))(*(v if isinstance(v, int) else v.data_ptr() for v in operands))
    library = ctypes.CDLL(str(folder / "epilogue.so"))
    if not rounded:
        library.run(packed, ctypes.c_void_p(sums.data_ptr()))
        return
    found = resolved(meta, tuple(sizes.values()))
    result, steps = operands[meta.maps[2].arg], (ctypes.c_int64 * 4)(*(n // 2 for n in found.strides[2]))
    assert isinstance(result, torch.Tensor)
    address = ctypes.c_void_p(result.data_ptr() + found.offsets[2])
    library.run(packed, ctypes.c_void_p(sums.data_ptr()), address, steps)
